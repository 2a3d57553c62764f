"""`sagda keys`: the keys and certificates of a federation's server and sites.

`federation/trust/` creates and checks the keys. docs/deployment.md describes which
command the coordinator runs and which command a site runs.
"""

import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from sagda import check
from sagda.check import BadValue
from sagda.commands.app import Json, flag, say
from sagda.federation.flower.processes import need_flower

keys = App(name="keys", help="Create and manage the keys of a federation.")

Days = Annotated[int, flag("Number of days until the new keys expire.")]
Hosts = Annotated[
    list[str] | None,
    flag(
        "Host names and IP addresses at which sites reach the server.",
        consume_multiple=True,
    ),
]
KeyFolder = Annotated[
    Path, flag("Folder with the keys from `sagda keys init`.", name="--keys")
]
KEYS, YEAR = Path("keys"), 365


def checked(days: int) -> int:
    """Check the number of days and that the needed packages are installed."""
    need_flower()
    return check.integer("days", days, low=1, high=3650)


def existing(folder: Path) -> Any:
    """Return the coordinator's keys in `folder`. Raise `BadValue` if it has none."""
    need_flower()
    from sagda.federation.trust.authority import Keys

    authority = Keys(folder)
    if not authority.ca.is_file():
        raise BadValue(
            f"{folder} must hold the coordinator's keys, found none; make them with "
            "`sagda keys init`, or name their folder with --keys."
        )
    return authority


def facts_of(entry: Any) -> dict[str, Any]:
    """Return the entries that `--json` prints for a site's key."""
    expires = entry.expires.isoformat()
    return {"name": entry.name, "fingerprint": entry.fingerprint, "expires": expires}


@keys.command(sort_key=0)
def init(
    *,
    host: Hosts = None,
    at: Annotated[Path, flag("Folder to create for the keys.", name="--keys")] = KEYS,
    sites: Annotated[
        list[str] | None,
        flag(
            "Also make keys for these sites. Only for tests: real sites make their own "
            "keys.",
            consume_multiple=True,
        ),
    ] = None,
    days: Days = YEAR,
    json: Json = False,
) -> int:
    """Create a coordinator's keys: an authority and the server's certificate.

    Example: `sagda keys init --host fl.example.org`
    """
    days, hosts = checked(days), host or []
    from sagda.federation.trust.authority import Keys, alternative
    from sagda.federation.trust.site_keys import check_name, make_site

    for name in hosts:
        alternative(name)
    for name in sites or []:
        check_name(name)
    authority = Keys(at)
    authority.init(hosts, days)
    for name in sites or []:
        _, public = make_site(at / "development", name, days)
        authority.admit(public, False)
    text = (
        f"Give {authority.ca} to every site. {at / 'ca.key'} signs certificates: keep "
        "it safe.\nThe server's certificate is valid until "
        f"{authority.expires:%Y-%m-%d}."
    )
    return say(
        json, {"folder": str(at), "expires": authority.expires.isoformat()}, text
    )


@keys.command(sort_key=1)
def site(
    name: Annotated[str, flag("Name of the site; the site must never change it.")],
    *,
    folder: Annotated[Path, flag("Folder for the two files.")] = Path(),
    days: Days = YEAR,
    json: Json = False,
) -> int:
    """Create a site's key. Send NAME.pub to the coordinator, and never send NAME.key.

    Example: `sagda keys site hospital-a`
    """
    days = checked(days)
    from sagda.federation.trust.site_keys import Entry, make_site

    secret, public = make_site(folder, name, days)
    entry = Entry.read(public)
    text = (
        f"Send {public} to the coordinator, and read its fingerprint to them:\n"
        f"{entry.fingerprint}\nKeep {secret} here. "
        f"Both are valid until {entry.expires}."
    )
    files = {"private": str(secret), "public": str(public)}
    return say(json, files | facts_of(entry), text)


@keys.command(sort_key=2)
def admit(
    public: Annotated[Path, flag("The file NAME.pub that the site sent.")],
    *,
    at: KeyFolder = KEYS,
    replace: Annotated[
        bool, flag("Replace the old key of the site. The old key is archived.")
    ] = False,
    json: Json = False,
) -> int:
    """Let a site take part. A running server accepts the site within seconds.

    Example: `sagda keys admit hospital-a.pub`
    """
    entry = existing(at).admit(public, replace)
    text = f"{entry.name} may take part until {entry.expires}: {entry.fingerprint}"
    return say(json, facts_of(entry), text)


@keys.command(sort_key=3)
def remove(
    name: Annotated[str, flag("Name of the site.")],
    *,
    at: KeyFolder = KEYS,
    json: Json = False,
) -> int:
    """Exclude a site from now on. The key of the site is archived.

    Example: `sagda keys remove hospital-a`
    """
    existing(at).remove(name)
    return say(json, {"name": name}, f"{name} may no longer take part.")


@keys.command(sort_key=4)
def renew(
    *,
    host: Hosts = None,
    at: KeyFolder = KEYS,
    days: Days = YEAR,
    json: Json = False,
) -> int:
    """Create a new server certificate. Restart `sagda serve` to use it.

    Example: `sagda keys renew`
    """
    days = checked(days)
    authority = existing(at)
    authority.renew(host, days)
    text = f"{authority.certificate} is valid until {authority.expires:%Y-%m-%d}."
    return say(json, {"expires": authority.expires.isoformat()}, text)


@keys.command(sort_key=5)
def show(*, at: KeyFolder = KEYS, json: Json = False) -> int:
    """Show which sites may take part, and until when.

    Example: `sagda keys show`
    """
    from sagda.federation.trust.site_keys import Register

    authority = existing(at)
    left = (authority.expires - datetime.datetime.now(datetime.UTC)).days
    entries = sorted(Register(authority.sites).now().values())
    facts = {
        "hosts": authority.hosts,
        "expires": authority.expires.isoformat(),
        "sites": [facts_of(entry) | {"expired": entry.expired} for entry in entries],
    }
    hosts = ", ".join(authority.hosts) or "this machine"
    until = f"until {authority.expires:%Y-%m-%d}, {left} days left"
    lines = [f"server of {hosts}: {until}"]
    lines += [
        f"{entry.name}: {'EXPIRED' if entry.expired else 'until'} {entry.expires}, "
        f"{entry.fingerprint}"
        for entry in entries
    ]
    return say(json, facts, "\n".join(lines))
