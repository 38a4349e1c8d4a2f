"""Postal addresses as people of many countries write them, and texts that only look like them."""

import pytest

from nearfar.orchestrator.safety.detection.standard import standard_detectors

ADDRESSES = [
    "12 Elm Street",
    "221B Baker Street",
    "1600 N Larkspur Ave.",
    "7 Old Mill Lane",
    "14a, Rose Hill Crescent",
    "Apt. 12",
    "Suite 400",
    "Springfield, IL 62704",
    "Boston, MA 02110-1301",
    "M4B 1B3",
    "EC1A 1BB",
    "P.O. Box 1204",
    "PO Box 7",
    "Lindenstraße 5",
    "Lindenstr. 5a",
    "Am Alten Weg 12",
    "Berliner Allee 7/2",
    "Postfach 10 02",
    "Prinsengracht 263",
    "Kerkstraat 12b",
    "Storgatan 4",
    "Nørregade 10",
    "Mannerheimkatu 3",
    "12 bis, rue de la Paix",
    "8 avenue Foch",
    "3 place des Vosges",
    "Rue de la Loi 200",
    "avenue Louise 54",
    "chaussée d'Ixelles, 12b",
    "Quai du Mont-Blanc 19",
    "Calle de Alcalá 42",
    "C/ Mayor, 7",
    "Avenida de la Constitución, nº 12",
    "Via Garibaldi 24",
    "Piazza del Popolo, 3",
    "Rua das Flores, 120",
    "ul. Marszałkowska 10/12",
    "ул. Ленина, д. 5",
    "Kossuth utca 7",
    "〒100-0001",
    "千代田1丁目",
    "南京路100号",
    "테헤란로 152",
]
HARMLESS = [
    "Sur l'avenue Foch en 1998, 12 voitures",
    "La rue de la Paix 2019",
    "The avenue has 12 trees, and the quay 3 ships.",
    "Avenue lined with 40 limes",
    "We crashed in 2008 Wall Street terms.",
    "It is 5 minutes down the road.",
    "274 square miles of forest",
    "There are 3 ways to place a bet.",
    "Arbeitsplatz 3 ist frei, Parkplatz 12 auch.",
    "Investigate 12 cases, aggregate 4 of them.",
    "I came via train 9 to Rome.",
    "C. 1, 2 and 3",
    "In unit 3 we learn about streets.",
    "Version 10 drives the new place in a row.",
    "The road to 2030 is long, and the hill steep.",
    "Spring 2024 was a square deal.",
    "the plaza has 12 shops",
    "Add 30 square pieces and close 2 windows.",
    "ОС и пр. 3 версии",
]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("sentence", ["I live at {}.", "Bitte an {} senden", "{}"])
def test_an_address_is_found(address: str, sentence: str) -> None:
    text = sentence.format(address)
    assert any(finding.type == "address" and finding.text in text for finding in standard_detectors().find(text))


@pytest.mark.parametrize("text", HARMLESS)
def test_texts_without_an_address_are_let_alone(text: str) -> None:
    assert [finding for finding in standard_detectors().find(text) if finding.type == "address"] == []


def test_a_street_in_small_letters_is_an_address_where_words_say_so() -> None:
    assert any(finding.type == "address" for finding in standard_detectors().find("i live at 742 evergreen terrace"))
    assert any(finding.type == "address" for finding in standard_detectors().find("i moved to 1999 Harbor View Dr"))
    assert standard_detectors().find("walk 742 steps up the terrace") == []
