"""Questions that the demo model must not answer: what lies outside its world, and media that were not sent.

Knows which media a question needs, and takes them from the other scenes; draws nothing itself.
"""

from __future__ import annotations

import re
from typing import Literal, TypeVar

import numpy as np

from samples.demo_training.scenes import clips, heard, lettering, pictures, questions, seen_wordings, sounds
from samples.demo_training.scenes.base import Clip, Medium, Picture, Sample, Sound, Split, Turn
from samples.demo_training.scenes.outside import TEMPLATES, About
from samples.demo_training.scenes.outside_words import WORDS
from samples.demo_training.scenes.tones import KEYS

UNKNOWN = "I don't know that."
NO_PICTURE = "There is no picture."
NO_SOUND = "There is no sound."
NO_VIDEO = "There is no video."

TASKS = ("outside", "outside_with_media", "no_picture", "no_sound", "no_video")
_WEIGHTS = (0.43, 0.3, 0.09, 0.09, 0.09)

_Choice = TypeVar("_Choice")
_Missing = Literal["no_picture", "no_sound", "no_video"]
_MISSING: dict[_Missing, str] = {"no_picture": NO_PICTURE, "no_sound": NO_SOUND, "no_video": NO_VIDEO}
_ABOUT_MISSING: dict[Split, dict[_Missing, tuple[str, ...]]] = {
    "train": {
        "no_picture": (
            "How many {shape}s are there?",
            "How many shapes are there?",
            "How many shapes are in the picture?",
            "How many {colour} shapes are there?",
            "How many {colour} {shape}s are in the picture?",
            "What colour is the {shape}?",
            "Which colour does the {shape} have?",
            "Where is the {shape}?",
            "Where is the {colour} {shape}?",
            "What is left of the {colour} {shape}?",
            "What is right of the {shape}?",
            "What is above the {shape}?",
            "What is below the {colour} {shape}?",
            "Is there a {colour} {shape}?",
            "Is there a {shape} in the picture?",
            "Is the {shape} left of the {shape}?",
            "Are there more {shape}s or {shape}s?",
            "Which shape is the largest?",
            "Describe the picture.",
            "What do you see?",
            "What is in the picture?",
            "What is in this image?",
            "Which number is in the picture?",
            "Which word is in the picture?",
            "Read the word in the picture.",
            "Read the picture.",
            "What number is printed?",
            "What word is printed?",
            "Which word is written here?",
            "What does the sign say?",
            "Which picture has more {shape}s?",
            "What differs between the two pictures?",
        ),
        "no_sound": (
            "Which keys were dialled?",
            "Which number was dialled?",
            "What was dialled?",
            "Were any keys dialled?",
            "What does the Morse code say?",
            "Which letters are sent in Morse code?",
            "Does the tone rise or fall?",
            "Does the sound rise or fall?",
            "How many beeps are there?",
            "How many beeps do you hear?",
            "Which beep is louder?",
            "Which beeps are loud and which are soft?",
            "What do you hear?",
            "What kind of sound is it?",
            "Describe the sound.",
            "Is there a sound?",
        ),
        "no_video": (
            "Which colour comes first?",
            "Which colour comes last?",
            "In which order do the colours come?",
            "How many times does it blink?",
            "How often does the {shape} blink?",
            "At which second does it blink first?",
            "When does the {shape} appear?",
            "At which second does the {shape} appear?",
            "Which way does the {shape} move?",
            "In which direction does it move?",
            "What happens in the video?",
            "Describe the video.",
            "What was dialled while the {shape} was {colour}?",
            "How long is the video?",
        ),
    },
    "test": {
        "no_picture": (
            "Count the {shape}s.",
            "How many {colour} {shape}s can you see?",
            "Tell me the colour of the {shape}.",
            "What is to the left of the {shape}?",
            "Do you see a {colour} {shape}?",
            "Which shapes are in the picture?",
            "What does the picture say?",
            "Is the {colour} {shape} above the {shape}?",
            "Which letters do you see in the picture?",
            "How many figures does this image show?",
        ),
        "no_sound": (
            "Which keys do you hear?",
            "How many beeps does the sound have?",
            "Which letters does the Morse code spell?",
            "Does the sound go up or down?",
            "What is in the sound?",
            "Which tone is louder?",
            "Tell me the keys that were dialled.",
            "What message is sent in Morse code?",
            "Is the second beep louder?",
            "Does it beep?",
        ),
        "no_video": (
            "Which colour is first in the video?",
            "How many times does the {shape} blink?",
            "Where does the {shape} move?",
            "What is in the video?",
            "At which second does the {colour} {shape} appear?",
            "Which colour comes second?",
            "How often is the {shape} seen to blink?",
            "Where does the {colour} {shape} move to?",
            "Which shape appears first in the video?",
            "When does the {colour} {shape} blink first?",
        ),
    },
}
# A question about one medium cannot go with another that could answer it: a video has pictures and may have sound.
_OTHER_MEDIA: dict[_Missing, tuple[About, ...]] = {
    "no_picture": ("text", "sound"),
    "no_sound": ("text", "picture"),
    "no_video": ("text", "picture", "sound"),
}
# Questions that no picture could answer, with what fills their gap.
_OF_VIDEOS_ALONE = {
    "colour_order": "",
    "first_colour": "",
    "last_colour": "",
    "when_colour": "{colour}",
    "when_shape": "{shape}",
    "first_blink": "",
    "last_blink": "",
    "num_blinks": "",
    "way": "",
    "way_of": "{shape}",
    "mover": "",
    "does_move": "{shape}",
    "shape_at": "{second}",
    "shape_order": "",
    "keys_while": "the {shape} was {colour}",
}
# Made-up names teach that a word never heard of is no reason to guess.
_MADE_UP_SHARE = 0.15
_ONSETS = (
    "b",
    "br",
    "d",
    "f",
    "g",
    "gl",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "oo")
_CODAS = ("", "", "n", "r", "l", "m", "s", "k", "nd", "rt")
SLOT = re.compile(r"\{(\w+)\}")


def sample(rng: np.random.Generator, split: Split, turns: int = 1, task: str | None = None) -> Sample:
    """Refusals in a row, half of them after media; with more than one turn, some true answers in between.

    A sample that is asked for one `task` has turns of that task only.
    """
    name = task or str(rng.choice(TASKS, p=_WEIGHTS))
    about = medium_kind(rng, name)
    if about == "text":
        names = [name, *(str(rng.choice(TASKS)) if task is None else task for _ in range(turns - 1))]
        # Without media, nothing can be asked about them.
        fitting = ["outside" if each == "outside_with_media" else each for each in names]
        return Sample(turns=tuple(refusal(rng, split, each, "text") for each in fitting))
    num_true = 0 if task is not None else int(rng.integers(0, turns))
    scene = scene_with(rng, split, about, max(1, num_true))
    refused = [refusal(rng, split, name, about)]
    refused += [
        refusal(rng, split, name if task else fitting_task(rng, about), about)
        for _ in range(turns - num_true - 1)
    ]
    return Sample(turns=interrupted(rng, scene.turns[:num_true], refused), media=scene.media)


def medium_kind(rng: np.random.Generator, task: str) -> About:
    """What comes along with a question of this task."""
    if task == "outside":
        return "text" if rng.random() < 0.7 else pick(rng, ("picture", "sound", "video"))
    if task == "outside_with_media":
        return pick(rng, ("picture", "picture", "sound", "video"))
    return pick(rng, _OTHER_MEDIA[_missing(task)])


def fitting_task(rng: np.random.Generator, about: About) -> str:
    """A task whose questions may follow such media."""
    tasks = ["outside"] if about == "text" else ["outside", "outside_with_media"]
    return str(rng.choice([*tasks, *(name for name, others in _OTHER_MEDIA.items() if about in others)]))


def refusal(rng: np.random.Generator, split: Split, task: str, about: About) -> Turn:
    """One question of the task about media of this kind, and its only right answer."""
    if task == "outside":
        return Turn(
            question=_filled(rng, split, pick(rng, TEMPLATES[split]["text"])), answer=UNKNOWN, task=task
        )
    if task == "outside_with_media":
        if about == "text":
            raise ValueError("outside_with_media needs a picture, a sound or a video; this sample has none")
        template = pick(rng, TEMPLATES[split][about])
        return Turn(question=_filled(rng, split, template), answer=UNKNOWN, task=task)
    missing = _missing(task)
    return Turn(
        question=_about_missing(rng, split, missing),
        answer=_MISSING[missing],
        task=task,
    )


def _about_missing(rng: np.random.Generator, split: Split, missing: _Missing) -> str:
    """A question that needs what is missing: as often as not just as it is asked where it is there."""
    if rng.random() < 0.5:
        if missing == "no_picture":
            name = pick(rng, tuple(questions.TASKS))
            exchange = questions.TASKS[name](rng, pictures.scene_for(rng, split, name))
            if exchange:
                return exchange[0][0]
        if missing == "no_sound":
            wording = pick(rng, pick(rng, tuple(heard.WORDINGS.values())))
            return wording.format(key=pick(rng, tuple(KEYS)))
        if missing == "no_video":
            name = pick(rng, tuple(_OF_VIDEOS_ALONE))
            filling = _filled(rng, split, _OF_VIDEOS_ALONE[name])
            return pick(rng, seen_wordings.WORDINGS[name]).format(filling)
    return _filled(rng, split, pick(rng, _ABOUT_MISSING[split][missing]))


def scene_with(rng: np.random.Generator, split: Split, about: About, turns: int) -> Sample:
    """Media of this kind, with true questions about them."""
    if about == "sound":
        return sounds.sample(rng, split, turns=turns)
    if about == "video":
        return clips.sample(rng, split, turns=turns)
    if rng.random() < 0.3:
        return lettering.sample(rng, split, turns=turns)
    return pictures.sample(rng, split, turns=turns)


def kind_of(media: tuple[Medium, ...]) -> About:
    """What a question about these media speaks of."""
    if any(isinstance(medium, Clip) for medium in media):
        return "video"
    if any(isinstance(medium, Sound) for medium in media):
        return "sound"
    return "picture" if any(isinstance(medium, Picture) for medium in media) else "text"


def interrupted(rng: np.random.Generator, true: tuple[Turn, ...], others: list[Turn]) -> tuple[Turn, ...]:
    """The true turns in their order with the others in between, never within a dialogue whose turns refer back."""
    turns = list(true)
    for other in others:
        places = [
            place
            for place in range(len(turns) + 1)
            if place in (0, len(turns)) or {turns[place - 1].task, turns[place].task} != {"dialogue"}
        ]
        turns.insert(int(rng.choice(places)), other)
    return tuple(turns)


def _missing(task: str) -> _Missing:
    for name in _MISSING:
        if name == task:
            return name
    raise ValueError(f"there is no refusal task '{task}'; the tasks are {', '.join(TASKS)}")


def _filled(rng: np.random.Generator, split: Split, template: str) -> str:
    """The template with its slots filled, each slot of a name with another word."""
    used: set[str] = set()

    def word(slot: re.Match[str]) -> str:
        while (chosen := _word(rng, split, slot[1])) in used:
            pass
        used.add(chosen)
        return chosen

    text = SLOT.sub(word, template)
    return re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text)


def _word(rng: np.random.Generator, split: Split, slot: str) -> str:
    if slot == "second":
        return str(int(rng.integers(1, 12)))
    if slot == "number":
        # From where the model's own sums and differences end.
        return str(int(rng.integers(41, 100 if rng.random() < 0.3 else 10_000)))
    if slot in ("person", "place", "thing", "animal", "topic", "work") and rng.random() < _MADE_UP_SHARE:
        made_up = "".join(pick(rng, _ONSETS) + pick(rng, _VOWELS) for _ in range(int(rng.integers(1, 3))))
        made_up += pick(rng, _ONSETS) + pick(rng, _VOWELS) + pick(rng, _CODAS)
        return made_up if slot in ("thing", "animal") else made_up.capitalize()
    return pick(rng, WORDS[split][slot])


def pick(rng: np.random.Generator, choices: tuple[_Choice, ...]) -> _Choice:
    """One of the choices, each as likely as any other."""
    return choices[int(rng.integers(len(choices)))]
