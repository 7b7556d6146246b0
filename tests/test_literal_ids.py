"""The IDs of real tokenizers, written down: what the references say today is what they said when this was written.

Every other test compares with the live tokenizer; if that were read wrongly, or were not the one it is named after,
both sides would agree. Models that share a vocabulary share a row.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Subject
from oracle import case, ids_of

from delta_core.tools.fetch import NAMES
from delta_core.tools.verify.dense import dense

TEXTS = {
    "plain words": "The quick brown fox doesn't jump.",
    "code": "def f(x):\n    return x[0] += 1\n",
    "digits": "1234567 3.14 2026-01-02",
    "accents composed": "naïve café",
    "accents decomposed": "nai\u0308ve cafe\u0301",
    "CJK": "东京タワー 한국어。",
    "emoji joined": "\U0001f469\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f!",
    "white space": "a  b\t\tc \n\n\n   d   ",
    "line ends": "x\r\ny\r\n\r\nz\n",
    "contractions": "I'LL we'Ve it'\u017f",
    "other scripts": "\u05e9\u05dc\u05d5\u05dd \u0915\u094d\u0937\u093f Vi\u1ec7t",
    "controls": "a\x00b\x7f\ufeff",
    "empty": "",
}

ADDED = {
    "qwen3": "<|im_start|>user\nHi<|im_end|><|im_",
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|eot_",
    "gpt_oss": "Hi<|endoftext|><|endoftext|>\n<|endof",
    "gpt35_turbo": "<|fim_prefix|>def<|fim_suffix|> x<|fim_middle|><|fim_",
    "deepseek_v3": "<｜User｜>Hi<｜Assistant｜>\n<｜User",
    "kimi_k3": "[BOS]Hi<|open|>x<|close|>[EOS]<|op",
    "gpt2": "Hi<|endoftext|> <|endoftext|><|endof",
}

FAMILIES = {
    "qwen3": ("qwen3", "qwen2_5"),
    "llama3": ("llama3", "llama3_1"),
    "gpt_oss": ("gpt_oss", "gpt4o"),
    "gpt35_turbo": ("gpt35_turbo",),
    "deepseek_v3": ("deepseek_v3", "deepseek_r1", "deepseek_v4"),
    "kimi_k3": ("kimi_k3",),
    "gpt2": ("gpt2",),
}

# What stands before every text where special tokens are asked for.
BEGINNINGS = {"llama3_1": [128000]}

IDS = {
    "qwen3": {
        "plain words": [785, 3974, 13876, 38835, 3171, 944, 7784, 13],
        "code": [750, 282, 2075, 982, 262, 470, 856, 58, 15, 60, 1421, 220, 16, 198],
        "digits": [16, 17, 18, 19, 20, 21, 22, 220, 18, 13, 16, 19, 220, 17, 15, 17, 21, 12, 15, 16, 12, 15, 17],
        "accents composed": [3376, 37572, 586, 51950],
        "accents decomposed": [3376, 37572, 586, 51950],
        "CJK": [107513, 46207, 125980, 130092, 31079, 1773],
        "emoji joined": [145233, 378, 235, 145233, 378, 235, 145665, 70470, 30543, 0],
        "white space": [64, 220, 293, 197, 1444, 14731, 256, 294, 262],
        "line ends": [87, 319, 88, 871, 89, 198],
        "contractions": [40, 6, 4086, 582, 6, 42612, 432, 6, 144815],
        "other scripts": [126654, 47809, 30484, 115, 38851, 128324],
        "controls": [64, 188, 65, 221, 3225],
        "empty": [],
        "added tokens": [151644, 872, 198, 13048, 151645, 27, 91, 318, 62],
    },
    "llama3": {
        "plain words": [791, 4062, 14198, 39935, 3250, 956, 7940, 13],
        "code": [755, 282, 2120, 997, 262, 471, 865, 58, 15, 60, 1447, 220, 16, 198],
        "digits": [4513, 10961, 22, 220, 18, 13, 975, 220, 2366, 21, 12, 1721, 12, 2437],
        "accents composed": [3458, 38672, 588, 53050],
        "accents decomposed": [77, 2192, 127104, 588, 42030, 54939],
        "CJK": [68464, 47653, 47307, 124049, 104008, 32179, 1811],
        "emoji joined": [9468, 239, 102, 102470, 9468, 239, 102, 102470, 9468, 239, 100, 71570, 31643, 0],
        "white space": [64, 220, 293, 197, 1470, 15073, 256, 294, 262],
        "line ends": [87, 319, 88, 881, 89, 198],
        "contractions": [40, 6, 4178, 584, 6, 43712, 433, 6, 129, 123],
        "other scripts": [59511, 50391, 37769, 251, 48909, 100580, 39951, 101798],
        "controls": [64, 188, 65, 221, 3305],
        "empty": [],
        "added tokens": [128006, 882, 128007, 271, 13347, 128009, 27, 91, 68, 354, 62],
    },
    "gpt_oss": {
        "plain words": [976, 4853, 19705, 68347, 8740, 13843, 13],
        "code": [1314, 285, 4061, 1883, 271, 622, 1215, 58, 15, 60, 2757, 220, 16, 198],
        "digits": [7633, 19354, 22, 220, 18, 13, 1265, 220, 1323, 21, 12, 2290, 12, 3286],
        "accents composed": [1503, 9954, 737, 30469],
        "accents decomposed": [141110, 47565, 737, 50672, 13430],
        "CJK": [103063, 12288, 34022, 3022, 52971, 5959, 788],
        "emoji joined": [28823, 102, 2524, 28823, 102, 2524, 28823, 100, 122205, 0],
        "white space": [64, 220, 287, 197, 2736, 25980, 256, 272, 271],
        "line ends": [87, 370, 88, 1414, 89, 198],
        "contractions": [40, 6, 7454, 581, 6, 27493, 480, 6, 70067],
        "other scripts": [106154, 25727, 785, 53904],
        "controls": [64, 188, 65, 221, 5574],
        "empty": [],
        "added tokens": [12194, 199999, 199999, 198, 27, 91, 419, 1440],
    },
    "gpt35_turbo": {
        "plain words": [791, 4062, 14198, 39935, 3250, 956, 7940, 13],
        "code": [755, 282, 2120, 997, 262, 471, 865, 58, 15, 60, 1447, 220, 16, 198],
        "digits": [4513, 10961, 22, 220, 18, 13, 975, 220, 2366, 21, 12, 1721, 12, 2437],
        "accents composed": [3458, 38672, 588, 53050],
        "accents decomposed": [77, 2192, 136, 230, 588, 42030, 54939],
        "CJK": [68464, 47653, 47307, 2845, 107, 11972, 62398, 89059, 255, 32179, 1811],
        "emoji joined": [9468, 239, 102, 378, 235, 9468, 239, 102, 378, 235, 9468, 239, 100, 71570, 31643, 0],
        "white space": [64, 220, 293, 197, 1470, 15073, 256, 294, 262],
        "line ends": [87, 319, 88, 881, 89, 198],
        "contractions": [40, 6, 4178, 584, 6, 43712, 433, 6, 129, 123],
        "other scripts": [59511, 50391, 37769, 251, 48909, 31584, 115, 39951, 11655, 26298, 83],
        "controls": [64, 188, 65, 221, 3305],
        "empty": [],
        "added tokens": [100258, 755, 100260, 865, 100259, 27, 91, 69, 318, 62],
    },
    "deepseek_v3": {
        "plain words": [671, 4787, 13769, 46012, 5354, 1664, 12583, 16],
        "code": [3465, 285, 4042, 3395, 361, 1354, 1527, 61, 18, 63, 7004, 223, 19, 201],
        "digits": [6895, 18009, 25, 223, 21, 16, 929, 223, 939, 24, 15, 2616, 15, 3425],
        "accents composed": [2720, 91223, 57664],
        "accents decomposed": [58009, 66383, 427, 69292, 17793],
        "CJK": [39813, 11767, 37560, 4045, 51345, 9227, 320],
        "emoji joined": [25730, 105, 46088, 25730, 105, 46088, 25730, 103, 53341, 100, 10759, 3],
        "white space": [67, 223, 291, 200, 28544, 61915, 262, 283, 361],
        "line ends": [90, 204, 201, 91, 204, 201, 204, 201, 92, 201],
        "contractions": [43, 9, 3699, 579, 9, 33455, 436, 9, 75929],
        "other scripts": [8793, 2328, 16467, 10169, 42413, 5685, 19239, 96272],
        "controls": [67, 191, 68, 224, 15251],
        "empty": [],
        "added tokens": [128803, 23166, 128804, 201, 30, 28217, 6756],
    },
    "kimi_k3": {
        "plain words": [1008, 5072, 16331, 69275, 8370, 13396, 13],
        "code": [1166, 285, 3940, 2360, 274, 745, 1288, 58, 15, 60, 3484, 220, 16, 198],
        "digits": [6694, 12972, 22, 220, 18, 13, 1626, 220, 2975, 21, 12, 3358, 12, 4312],
        "accents composed": [4768, 44187, 367, 70591],
        "accents decomposed": [59911, 136, 230, 367, 51158, 37484],
        "CJK": [26268, 21449, 59168, 5678, 78560, 54078, 28763, 292],
        "emoji joined": [64390, 102, 67963, 64390, 102, 67963, 64390, 100, 104137, 97, 31615, 0],
        "white space": [64, 220, 291, 197, 2529, 67667, 256, 304, 274],
        "line ends": [87, 462, 88, 2298, 89, 198],
        "contractions": [40, 6, 5847, 645, 6, 62781, 483, 6, 129, 123],
        "other scripts": [16838, 11792, 84242, 14447, 50258, 7165, 47662, 69286, 83],
        "controls": [64, 188, 65, 221, 31384],
        "empty": [],
        "added tokens": [163584, 18699, 163587, 87, 163588, 163585, 27, 91, 482],
    },
    "gpt2": {
        "plain words": [464, 2068, 7586, 21831, 1595, 470, 4391, 13],
        "code": [4299, 277, 7, 87, 2599, 198, 220, 220, 220, 1441, 2124, 58, 15, 60, 15853, 352, 198],
        "digits": [10163, 2231, 3134, 513, 13, 1415, 1160, 2075, 12, 486, 12, 2999],
        "accents composed": [2616, 38776, 40304],
        "accents decomposed": [38600, 136, 230, 303, 26725, 136, 223],
        "CJK": [10310, 250, 12859, 105, 23376, 25589, 6312, 220, 47991, 250, 166, 113, 255, 168, 244, 112, 16764],
        "emoji joined": [41840, 102, 447, 235, 41840, 102, 447, 235, 41840, 100, 43074, 97, 37929, 0],
        "white space": [64, 220, 275, 197, 197, 66, 220, 628, 198, 220, 220, 288, 220, 220, 220],
        "line ends": [87, 201, 198, 88, 201, 198, 201, 198, 89, 198],
        "contractions": [40, 6, 3069, 356, 6, 26979, 340, 6, 129, 123],
        "other scripts": [
            50227,
            40010,
            27072,
            147,
            251,
            28225,
            243,
            24231,
            235,
            11976,
            115,
            11976,
            123,
            16049,
            157,
            119,
            229,
            83,
        ],
        "controls": [64, 188, 65, 221, 171, 119, 123],
        "empty": [],
        "added tokens": [17250, 50256, 220, 50256, 27, 91, 437, 1659],
    },
}


def test_every_bundled_name_has_its_ids_here() -> None:
    assert sorted(name for names in FAMILIES.values() for name in names) == sorted(NAMES)
    assert IDS.keys() == ADDED.keys() == FAMILIES.keys()
    for family, rows in IDS.items():
        assert rows.keys() == {*TEXTS, "added tokens"}, family


@pytest.mark.parametrize(("family", "name"), [(f, name) for f, names in FAMILIES.items() for name in names])
def test_the_ids_of_a_dozen_texts_are_those_written_down(
    family: str, name: str, real_tokenizer: Callable[[str], Subject]
) -> None:
    subject = real_tokenizer(name)
    tok, live = subject.tok, subject.live
    for kind, text in {**TEXTS, "added tokens": ADDED[family]}.items():
        want = IDS[family][kind]
        with case(name, kind):
            assert ids_of(live, text) == want, "the reference"
            assert ids_of(live, text, True) == BEGINNINGS.get(name, []) + want, "the reference, with special tokens"
            assert tok.encode(text, add_special_tokens=False) == want, "cold"
            assert tok.encode(text) == BEGINNINGS.get(name, []) + want, "with special tokens"
            assert tok.encode_array(text, add_special_tokens=False).tolist() == want, "as an array"
            with dense():  # as shipped, texts as short as these are not remembered
                for cut in range(len(text) + 1):
                    tok.clear()
                    tok.encode(text[:cut], session="s", add_special_tokens=False)
                    assert tok.encode(text, session="s", add_special_tokens=False) == want, f"behind {cut} characters"
                    assert tok.encode(text + "x", session="s", add_special_tokens=False) == ids_of(live, text + "x")
                    assert tok.encode(text, session="s", add_special_tokens=False) == want, "with its end taken back"
                tok.clear()
    assert not tok.stats().fallbacks
