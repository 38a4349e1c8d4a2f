"""Verbs of what people do on purpose, and those of them by which `how do you` and `how do I` ask for the same instructions."""

from typing import Final

from .lists import listed

_ACTIONS: Final = """
access achieve add apply approach attach attract avoid backup bake become boil book boost build burn buy calculate cancel change charge
check choose clean clear close compare compile configure connect contact control convert cook copy correct create cure cut deal debug
decide decorate define delete describe design develop disable download draw dress drive dry dye earn edit email embed enable
encrypt end enter erase exchange expand export extend extract file fill find finish fix fly fold forget format freeze gain generate
get grow handle hack hang hide hire host identify implement import improve increase insert install invest join juggle keep kill
learn lift limit link list load lock log lose lower maintain make manage measure meditate merge mine mix motivate move negotiate open
optimize organise organize overcome pack paint park parse pass paste pay peel perform plan plant play post practice prepare prevent
print program promote pronounce prove publish pull push quit raise reach read recover reduce register remove rename renew rent repair
replace report request reset resize restart restore reverse revise roast root run save scan search select sell send set setup
share sharpen sign sketch solve sort spell split spread start stay stop store study submit survive swim teach test throw tie train
transfer translate travel treat turn type uninstall unlock update upgrade upload use verify wash watch win write
"""
ACTIONS: Final = frozenset(_ACTIONS.split())
_OF_THE_ADDRESSED: Final = """
achieve add apply approach attach attract avoid book build buy calculate change charge check choose compare connect contact
control correct cure deal decide define describe design develop drive earn end exchange expand fill find file fit grow handle hide
hire host identify implement improve increase invest join keep kill limit link list load lower maintain manage measure motivate
move negotiate overcome pack pass pay perform plan post practice prepare prevent promote prove publish reach recover register rent
replace report request review save search select sell send share solve spend spread start stay stop store study submit survive
teach test train transfer travel treat use verify win
"""
INSTRUCTED: Final = ACTIONS - listed(_OF_THE_ADDRESSED)
"""Without verbs of what a person or a company that is asked may do itself: `how do you handle refunds`."""
_DOUBLED: Final = listed("cut get log plan program quit run set stop submit swim transfer win forget")


def plain_of(participle: str) -> str | None:
    """Return the verb of a form in `-ing`; None where it is none of an action."""
    return _PARTICIPLES.get(participle)


def _participle(verb: str) -> str:
    if verb in _DOUBLED:
        return f"{verb}{verb[-1]}ing"
    if verb.endswith("ie"):
        return f"{verb[:-2]}ying"
    return f"{verb[:-1]}ing" if verb.endswith("e") and not verb.endswith(("ee", "ye")) else f"{verb}ing"


_PARTICIPLES: Final = {_participle(verb): verb for verb in sorted(ACTIONS)}
