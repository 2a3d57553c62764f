"""Everything a person looks at: pages, pictures and the terminal."""
