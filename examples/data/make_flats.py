"""Write `flats.csv`, the table of Start and of the gallery: 300 flats, made up, with wrong values.

    python examples/data/make_flats.py [folder]

`flats-errors.csv` says what was made wrong: yearly rents among the monthly ones (5), a lost decimal
point in the cost of heating (4), rent and heating exchanged (3). 18 years of construction are
missing.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np

N_FLATS = 300
# Rent per square metre.
DISTRICTS = {"Altstadt": 14.5, "Hafen": 12.0, "Neustadt": 10.5, "Westend": 9.0}


def flats() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Return the flats, and the list of what is wrong with them."""
    rng = np.random.default_rng(2026)
    rows: list[dict[str, object]] = []
    for number in range(1, N_FLATS + 1):
        district = str(rng.choice(list(DISTRICTS)))
        rooms, floor = int(rng.integers(1, 6)), int(rng.integers(0, 7))
        area = round(14 + 19 * rooms + 7 * float(rng.standard_normal()))
        built = int(rng.integers(1900, 2024))
        lift = bool(rng.random() < (0.8 if floor > 3 else 0.3))
        height = 1 + 0.03 * floor if lift else 1 - 0.03 * max(floor - 2, 0)
        age = 2024 - built
        rent = (120 + DISTRICTS[district] * area * height - 0.8 * age) * rng.lognormal(sigma=0.05)
        heating = area * (0.5 + 0.008 * age) * rng.lognormal(sigma=0.06)
        rows.append(
            {
                "flat": f"F{number:03}",
                "district": district,
                "area": area,
                "rooms": rooms,
                "floor": floor,
                "lift": "yes" if lift else "no",
                "built": built,
                "rent": round(rent),
                "heating": round(heating),
            }
        )
    drawn = rng.permutation(N_FLATS).tolist()
    yearly, no_point, exchanged, unknown = drawn[:5], drawn[5:9], drawn[9:12], drawn[12:30]
    for i in yearly:
        rows[i]["rent"] = 12 * int(str(rows[i]["rent"]))
    for i in no_point:
        rows[i]["heating"] = 10 * int(str(rows[i]["heating"]))
    for i in exchanged:
        rows[i]["rent"], rows[i]["heating"] = rows[i]["heating"], rows[i]["rent"]
    for i in unknown:
        rows[i]["built"] = ""
    kinds = ((yearly, "yearly rent"), (no_point, "heating times ten"), (exchanged, "exchanged"))
    errors = [{"flat": rows[i]["flat"], "error": kind} for found, kind in kinds for i in found]
    return rows, sorted(errors, key=lambda error: str(error["flat"]))


def write(folder: Path) -> None:
    """Write both files."""
    rows, errors = flats()
    for name, content in (("flats.csv", rows), ("flats-errors.csv", errors)):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(content[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(content)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
