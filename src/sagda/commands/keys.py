"""`sagda keys`: who may take part in a federation, and how they know its server."""

import datetime
import json as json_module
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App

from sagda import check
from sagda.check import BadValue
from sagda.commands.app import Json, app, said

keys = App(name="keys", help="Keys and certificates of a federation.")
app.command(keys)


Days = Annotated[int, said("For how many days they are good.")]
Hosts = Annotated[
    list[str] | None,
    said("Names and addresses by which sites reach the server.", consume_multiple=True),
]
KEYS, YEAR = Path("keys"), 365


def need_cryptography() -> None:
    from sagda.federation.flower.processes import need_flower

    need_flower()


def checked(days: int) -> int:
    need_cryptography()
    return check.integer("days", days, low=1, high=3650)


def report(json: bool, text: str, **facts: Any) -> int:
    print(json_module.dumps(facts) if json else text)
    return 0


@keys.command
def init(
    *,
    host: Hosts = None,
    at: Annotated[Path, said("The new folder.", name="--keys")] = KEYS,
    sites: Annotated[
        list[str] | None,
        said(
            "Also make keys of these sites, to try out: real ones make their own.",
            consume_multiple=True,
        ),
    ] = None,
    days: Days = YEAR,
    json: Json = False,
) -> int:
    """A coordinator's keys: an authority, and the server's certificate.

    Example: `sagda keys init --host fl.example.org`
    """
    from sagda.federation.trust.authority import Keys, alternative
    from sagda.federation.trust.site_keys import check_name, make_site

    days, hosts = checked(days), host or []
    for name in hosts:
        alternative(name)
    for name in sites or []:
        check_name(name)
    held = Keys(at)
    held.init(hosts, days)
    for name in sites or []:
        _, public = make_site(at / "development", name, days)
        held.admit(public, False)
    text = (
        f"{held.ca} is for every site; {at / 'ca.key'} signs certificates: keep it "
        f"safe.\nThe server's certificate is good until {held.expires:%Y-%m-%d}."
    )
    return report(json, text, folder=str(at), expires=held.expires.isoformat())


@keys.command
def site(
    name: Annotated[str, said("The site's name, the same every time.")],
    *,
    folder: Annotated[Path, said("Where to put the two files.")] = Path(),
    days: Days = YEAR,
    json: Json = False,
) -> int:
    """A site's own key; NAME.pub goes to the coordinator, NAME.key to nobody.

    Example: `sagda keys site hospital-a`
    """
    days = checked(days)
    from sagda.federation.trust.site_keys import Entry, make_site

    secret, public = make_site(folder, name, days)
    entry = Entry.read(public)
    text = (
        f"Send {public} to the coordinator, and read out its fingerprint:\n"
        f"{entry.fingerprint}\nKeep {secret} here. Both are good until {entry.expires}."
    )
    facts = {"private": str(secret), "public": str(public)}
    facts |= {"fingerprint": entry.fingerprint, "expires": entry.expires.isoformat()}
    return report(json, text, **facts)


@keys.command
def admit(
    public: Annotated[Path, said("A site's NAME.pub.")],
    *,
    at: Annotated[Path, said("The coordinator's folder.", name="--keys")] = KEYS,
    replace: Annotated[
        bool, said("The site has a new key; the old one is put away.")
    ] = False,
    json: Json = False,
) -> int:
    """Let a site take part; a running server notices within seconds.

    Example: `sagda keys admit hospital-a.pub`
    """
    need_cryptography()
    from sagda.federation.trust.authority import Keys

    entry = existing(Keys(at)).admit(public, replace)
    text = f"{entry.name} may take part until {entry.expires}: {entry.fingerprint}"
    facts = {"name": entry.name, "fingerprint": entry.fingerprint}
    return report(json, text, **facts, expires=entry.expires.isoformat())


@keys.command
def remove(
    name: Annotated[str, said("The site.")],
    *,
    at: Annotated[Path, said("The coordinator's folder.", name="--keys")] = KEYS,
    json: Json = False,
) -> int:
    """Let a site take part no more; its key is put away.

    Example: `sagda keys remove hospital-a`
    """
    need_cryptography()
    from sagda.federation.trust.authority import Keys

    existing(Keys(at)).remove(name)
    return report(json, f"{name} may take part no more.", name=name)


@keys.command
def renew(
    *,
    host: Hosts = None,
    at: Annotated[Path, said("The coordinator's folder.", name="--keys")] = KEYS,
    days: Days = YEAR,
    json: Json = False,
) -> int:
    """A new server certificate of the same authority; restart `sagda serve` for it.

    Example: `sagda keys renew`
    """
    days = checked(days)
    from sagda.federation.trust.authority import Keys

    held = existing(Keys(at))
    held.renew(host, days)
    text = f"{held.certificate} is good until {held.expires:%Y-%m-%d}."
    return report(json, text, expires=held.expires.isoformat())


@keys.command
def show(
    *,
    at: Annotated[Path, said("The coordinator's folder.", name="--keys")] = KEYS,
    json: Json = False,
) -> int:
    """Who may take part, and until when.

    Example: `sagda keys show`
    """
    need_cryptography()
    from sagda.federation.trust.authority import Keys
    from sagda.federation.trust.site_keys import Register

    held = existing(Keys(at))
    left = (held.expires - datetime.datetime.now(datetime.UTC)).days
    entries = sorted(Register(held.sites).now().values())
    facts = {
        "hosts": held.hosts,
        "expires": held.expires.isoformat(),
        "sites": [
            {
                "name": e.name,
                "fingerprint": e.fingerprint,
                "expires": e.expires.isoformat(),
                "expired": e.expired,
            }
            for e in entries
        ],
    }
    hosts = ", ".join(held.hosts) or "this machine"
    until = f"until {held.expires:%Y-%m-%d}, {left} days left"
    lines = [f"server of {hosts}: {until}"]
    for e in entries:
        lines.append(
            f"{e.name}: {'EXPIRED' if e.expired else 'until'} {e.expires}, "
            f"{e.fingerprint}"
        )
    return report(json, "\n".join(lines), **facts)


def existing(held: Any) -> Any:
    if not held.ca.is_file():
        raise BadValue(
            f"{held.folder} holds no keys; `sagda keys init` makes them, and --keys "
            "names their folder."
        )
    return held
