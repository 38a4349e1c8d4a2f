"""What detectors find, what they leave alone, and that no text makes them slow."""

import pytest

from nearfar.orchestrator.safety.detection import Detectors, resolve
from nearfar.orchestrator.safety.detection.standard import standard_detectors

# Put together here, so that nobody's scanner takes this file for a leak.
GITHUB = "ghp_" + "aB3dE6gH9j" * 4
AMAZON = "AKIA" + "J7Q2ZK4M9XW3RT5B"
TOKEN = "eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJ" + "zdWIiOiIxMjM0NTY3ODkwIn0" + ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r"
PEM = "-----BEGIN RSA PRIVATE" + " KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE" + " KEY-----"

FOUND = [
    ("Write to jane.o'neil+tax@mail.example.co.uk, please.", "email", "jane.o'neil+tax@mail.example.co.uk"),
    ("<JÖRG@müller.de>", "email", "JÖRG@müller.de"),
    ("---- jane@example.com ----", "email", "jane@example.com"),
    ("jane@example.com-backup", "email", "jane@example.com"),
    ("jane (at) example (dot) com", "email", "jane (at) example (dot) com"),
    ("Mail jane at mail dot example dot com today", "email", "jane at mail dot example dot com"),
    ("https://example.com/?to=jane%40example.com&x=1", "email", "to=jane%40example.com"[3:]),
    ("Visa 4111 1111 1111 1111, thanks", "card", "4111 1111 1111 1111"),
    ("3782-822463-10005", "card", "3782-822463-10005"),
    ("6304 2204 5800", "card", None),
    ("my card 6304 2204 5800", "card", None),
    ("4111111111111112", "card", None),
    ("9111111111111119", "card", None),
    ("to GB29 NWBK 6016 1331 9268 19 PLEASE", "iban", "GB29 NWBK 6016 1331 9268 19"),
    ("de89370400440532013000", "iban", "de89370400440532013000"),
    ("DE88370400440532013000", "iban", None),
    ("ZZ89370400440532013000", "iban", None),
    ("her number is 460-89-9847.", "ssn", "460-89-9847"),
    ("SSN 460899847", "ssn", "460899847"),
    ("part 460899847", "ssn", None),
    *(
        (f"SSN {number}", "ssn", None)
        for number in ("000-12-3456", "666-12-3456", "900-12-3456", "123-00-4567", "123-45-0000", "078-05-1120")
    ),
    ("from 192.168.4.17:8080", "ip", "192.168.4.17"),
    ("[2001:db8::8a2e:370:7334]", "ip", "2001:db8::8a2e:370:7334"),
    ("::ffff:203.0.113.9", "ip", "::ffff:203.0.113.9"),
    ("fe80::1%eth0", "ip", "fe80::1"),
    ("See (https://example.org/a_(b)?q=1).", "url", "https://example.org/a_(b)?q=1"),
    ("WWW.example.org!", "url", "WWW.example.org"),
    (f"use {GITHUB} here", "key", GITHUB),
    (f"export AWS_ACCESS_KEY_ID={AMAZON}", "key", AMAZON),
    (f"jwt={TOKEN};", "key", TOKEN),
    (f"a\n{PEM}\nb", "key", PEM),
    ('"client_secret": "8fJ2kQ9xLm4Zt7Rw"', "key", "8fJ2kQ9xLm4Zt7Rw"),
    ("password: hunter2!x", "key", "hunter2!x"),
    ("pw = Summer2024!", "key", "Summer2024!"),
    ("postgres://app:s3cr3t-pw@db.internal/x", "key", "s3cr3t-pw"),
    ("Authorization: Bearer 8fJ2kQ9xLm4Zt7RwYb3N", "key", "8fJ2kQ9xLm4Zt7RwYb3N"),
    ("She was born on 12 March 1980 in Oslo", "birth_date", "12 March 1980"),
    ("DOB: 1980-03-12", "birth_date", "1980-03-12"),
    ("Geburtsdatum: 12.03.1980", "birth_date", "12.03.1980"),
    ("Date of birth: 31.31.1980", "birth_date", None),
    ("+44 20 7946 0958", "phone", "+44 20 7946 0958"),
    ("+1-984-182-0190", "phone", "+1-984-182-0190"),
    ("(415) 555-2671", "phone", "(415) 555-2671"),
    ("Tel.: 467 3395", "phone", "467 3395"),
    ("Call me on 9472 7916.", "phone", "9472 7916"),
    ("416 60 039 office", "phone", "416 60 039"),
    ("My new number is 9472 7916", "phone", "9472 7916"),
    ("My order number is 9472 7916", "phone", None),
    ("ring 020 7946 0958 x12", "phone", "020 7946 0958 x12"),
]
NAMED = [
    ("Mijn BSN is 1112.22.333, bedankt", "1112.22.333"),
    ("NHS number: 943 476 5870", "943 476 5870"),
    ("her DNI 54362315-K", "54362315-K"),
    ("NIE: X-2482300-W", "X-2482300-W"),
    ("codice fiscale: RCCMNL83S18D969H.", "RCCMNL83S18D969H"),
    ("PESEL 44051401358", None),
    ("the number 1112.22.333 of a part", None),
    ("BSN: none yet, ask again tomorrow", None),
]
HARMLESS = [
    "TR12 3456 7890 \u0131\u017fABCDEFGHIJKL 0123, s\u0131n 1112.22.333",  # letters that count as i and s where case does not matter
    "Released on 2020-06-20 14:11:22, version 10.2.33.4 of 2019-2020.",
    "ISBN 978-3-16-148410-0, EAN 4006381333931, DOI 10.1000/182",
    "123e4567-e89b-12d3-a456-426614174000 and d670460b4b4aece5915caf5c68d12f560a9fe3e4",
    "It costs 1,299.00 or 1 299 000 in all; pi is 3.14159265358979.",
    "52.520008, 13.404954 and 48.8566 2.3522",
    "17151 2450 and 501, 20789 Springfield",
    "Meet me at noon at the station dot. Look at example.com.",
    "std::vector<int> a::b; lodash@4.17.21; @pytest.mark.anyio; 12:30:45; localhost 127.0.0.1 ::1",
    "password: required. token = os.environ['API_TOKEN']; api_key=${API_KEY}; secret: <your-secret-here>",
    "The token count was 12 and the secret is patience. Keyboard: qwerty",
    "1 0 1 1 0 1 0 0 1 1 1 0 and a b c d e f g h i j",
    "Born in 1977; the meeting is on 12.03.2025.",
    "order 4155552671, ticket 00012345678, 1700000000000 ms",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkq\n-----END PUBLIC KEY-----",
]


@pytest.mark.parametrize(("text", "type", "found"), FOUND)
def test_private_data_are_found_where_they_stand(text: str, type: str, found: str | None) -> None:
    findings = Detectors([standard_detectors()], {type}).find(text)
    assert [finding.text for finding in findings] == ([found] if found else [])
    assert all(text[finding.start : finding.end] == finding.text for finding in findings)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_it_is_left_alone(text: str) -> None:
    assert resolve(standard_detectors().find(text)) == []


@pytest.mark.parametrize(("text", "found"), NAMED)
def test_national_numbers_are_found_where_they_are_named_and_valid(text: str, found: str | None) -> None:
    pytest.importorskip("stdnum", reason="the extra privacy is not installed")
    findings = Detectors([standard_detectors()], {"national_id"}).find(text)
    assert [finding.text for finding in findings] == ([found] if found else [])
