"""Tables, data sets, partitions, and the clients' objectives made of them."""
