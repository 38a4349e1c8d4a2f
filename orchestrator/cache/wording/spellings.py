"""Words that have two spellings or two names and one meaning, wherever they stand."""

import re
from typing import Final

from .lists import listed

_SAME: Final = """
color colour|colors colours|favorite favourite|flavor flavour|flavors flavours|humor humour|labor labour|neighbor neighbour
neighbors neighbours|behavior behaviour|center centre|centers centres|theater theatre|liter litre|liters litres|meter metre|meters metres
kilometer kilometre|kilometers kilometres|gray grey|defense defence|offense offence|traveling travelling|traveler traveller
canceled cancelled|modeling modelling|jewelry jewellery|program programme|aluminum aluminium|pajamas pyjamas|skeptical sceptical
misdemeanor misdemeanour|honor honour|rumor rumour|odor odour|vapor vapour|mold mould|tire tyre|tires tyres|plow plough|fiber fibre
maneuver manoeuvre|pediatric paediatric|anemia anaemia|diarrhea diarrhoea|estrogen oestrogen|encyclopedia encyclopaedia
organize organise|organizing organising|realize realise|recognize recognise|analyze analyse|optimize optimise|apologize apologise
memorize memorise|summarize summarise|customize customise|organization organisation|organizations organisations
buy purchase|buying purchasing|tv television|tvs televisions|math maths mathematics|email e-mail|emails e-mails|wifi wi-fi|website web-site
photo photograph|photos photographs|ok okay|anyone anybody|someone somebody|everyone everybody|while whilst
among amongst|until till|government govt|info information|smartphone smart-phone|ebook e-book|ebooks e-books
2 two|3 three|4 four|5 five|6 six|7 seven|8 eight|9 nine|10 ten|11 eleven|12 twelve
"""
_PLAIN: Final = {word: same.split()[0] for line in _SAME.strip().splitlines() for same in line.split("|") for word in same.split()}
_PHRASES: Final = tuple(
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\b(?:the us\b|(?:the )?(?:U\.S(?:\.A)?\.?|US|USA|usa|[Uu]nited [Ss]tates(?: of [Aa]merica)?)(?![\w.]))", "usa"),
        (r"\b(?:the )?(?:U\.K\.?|UK|uk|[Uu]nited [Kk]ingdom)(?![\w.])", "uk"),
        (r"\b(\d+(?:\.\d+)?) ?(?:%|percent\b|per cent\b)", r"\1 %"),
        (r"\b(\d+)(GB|MB|TB|kg|km|cm|mm|mph|kWh)\b", r"\1 \2"),
        (r"\b(\d{1,3}(?:,\d{3})+)(?![\d.,])", lambda found: found[1].replace(",", "")),
        (r"\b(make|making|earn|earning) money\b", lambda found: "earning money" if found[1].endswith("g") else "earn money"),
    )
)
_ABOUT_WORDS: Final = listed(
    "mean meaning means define defined definition word words spell spelled spelt spelling pronounce pronounced pronunciation synonym"
    " synonyms antonym plural singular rhyme rhymes call called phrase term terms translate translation grammar letter letters"
    " abbreviation stand stands difference differences differ different versus vs compare say saying write written"
)
"""Words of questions about words, in which no word stands for another one."""


def in_one_spelling(text: str) -> str:
    """Return a text whose words are spelled in one way, but where the words themselves are asked about."""
    words = text.split()
    if _ABOUT_WORDS.intersection(word.lower() for word in words):
        return text
    text = " ".join(_PLAIN.get(word, word) for word in words)
    for pattern, plain in _PHRASES:
        text = pattern.sub(plain, text)
    return text
