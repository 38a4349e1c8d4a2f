"""Common English words that identify nothing: finding one in the user's request does not show that a value came from it."""

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


COMMON: Final = _words(
    "about after again all also and any anybody anyone anything are ask back before but call can change check could day delete did "
    "done down each every everybody everyone everything few file files find first folder for friend from get give has have her here "
    "him his how just know last latest let like list look mail mails make many message messages more most move much must name need "
    "new next none not note now off old one only open order other our out own pay people please read recent room same see send set "
    "she show some such take tell than that the their them then there these they this those today tomorrow too two until update use "
    "user users very want was way what when where which who whole will with work would year yes yesterday yet you your"
)
