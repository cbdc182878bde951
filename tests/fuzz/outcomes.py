"""What came of a call: an answer, a sentence, or something that must not be."""

import re
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field

from vicinal.checks import InputError

# A record that refuses its own value blames the library, not the input.
OURS = re.compile(r"`[A-Z]\w*\.\w+` (holds|must hold)")


@dataclass
class Outcomes:
    """Counts of a generator: tried, answers, sentences, anything else."""

    name: str
    counts: Counter = field(default_factory=Counter)
    others: dict = field(default_factory=dict)  # where -> an example

    def of(self, call, check, drawn):
        """Run ``call``; ``check(answer)`` names what is wrong with an answer, or None."""
        self.counts["tried"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                answer = call()
                wrong = check(answer)
        except InputError as error:
            wrong = f"a record's own refusal: {error}" if OURS.search(str(error)) else None
            if wrong is None:
                self.counts["sentences"] += 1
                return None
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)
            ours = [f for f in where if "/vicinal/" in f.filename] or where
            wrong = f"{type(error).__name__}: {error} ({ours[-1].filename}:{ours[-1].lineno})"
        if wrong is None:
            self.counts["answers"] += 1
            return None
        self.counts["else"] += 1
        kind = re.sub(r"[-\d.e+]{3,}", "#", wrong)[:300]
        self.others.setdefault(kind, f"{wrong}\n        from {str(drawn)[:600]}")
        return wrong

    def __str__(self):
        c = self.counts
        head = (
            f"{self.name:24s} tried {c['tried']:5d}  answers {c['answers']:5d}  "
            f"sentences {c['sentences']:5d}  else {c['else']:4d}"
        )
        return "\n".join([head, *(f"    {v}" for v in self.others.values())])
