"""Names that are no everyday words, so that `japanese` is `Japanese`. `Turkey`, `Polish`, `May` and `Windows` are missing."""

from typing import Final

from .lists import listed

_LANGUAGES: Final = """
english french german spanish italian portuguese dutch russian japanese chinese
korean arabic hebrew hindi urdu bengali tamil telugu marathi gujarati punjabi latin greek turkish swedish norwegian finnish
icelandic hungarian romanian bulgarian ukrainian persian vietnamese indonesian esperanto sanskrit mandarin cantonese american
british canadian australian mexican brazilian indian pakistani african european asian
"""
_PLACES: Final = """
america europe asia africa australia usa uk england scotland ireland france germany spain italy portugal netherlands belgium
switzerland austria sweden norway finland iceland russia ukraine romania bulgaria hungary japan korea india pakistan bangladesh
nepal vietnam thailand indonesia malaysia singapore philippines taiwan iran iraq israel egypt nigeria kenya ethiopia canada mexico
brazil argentina peru colombia venezuela cuba london berlin munich hamburg vienna madrid barcelona lisbon rome milan venice
amsterdam brussels zurich stockholm oslo copenhagen helsinki moscow tokyo kyoto osaka beijing shanghai delhi mumbai bangalore
hyderabad chennai kolkata pune dubai istanbul cairo sydney melbourne toronto vancouver chicago boston seattle texas california
florida
"""
_DAYS: Final = """
monday tuesday wednesday thursday friday saturday sunday january february april june july september october november december
christmas easter
"""
_MAKERS: Final = """
google facebook youtube linkedin instagram whatsapp paypal netflix spotify quora reddit tumblr ebay microsoft ibm samsung nokia
toyota honda bmw iphone ipad android linux ubuntu macos javascript typescript postgresql mysql sqlite html css sql php wifi wi-fi
pdf usb gmail github docker kubernetes wordpress photoshop bitcoin ethereum wikipedia tv cpu gpu hiv dna upsc ielts toefl gmat mba
gre
"""
_PEOPLE: Final = "trump clinton obama hitler einstein gandhi modi shakespeare newton darwin napoleon stalin lenin putin"
NAMES: Final = listed(" ".join((_LANGUAGES, _PLACES, _DAYS, _MAKERS, _PEOPLE)))
