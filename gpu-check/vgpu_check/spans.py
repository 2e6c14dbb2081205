"""The times at which a process ran on the GPU. Pure. Times are in ns."""


def of_stamps(stamps, least):
    """Returns (begin, [(from, to)] of the absences, end) from the end times of consecutive short kernels.

    The usual distance is the kernel's length. The rest of a longer distance is an absence, if it is more than `least`:
    the kernel may have run before or after it.
    """
    distances = [after - before for before, after in zip(stamps, stamps[1:])]
    if not distances:
        return 0, [], 0
    usual = sorted(distances)[len(distances) // 2]
    beyond = [(distance - usual, after) for distance, after in zip(distances, stamps[1:])]
    gaps = [(after - more, after) for more, after in beyond if more > least]
    return stamps[0], gaps, stamps[-1]


def split(begin, gaps, end):
    """Returns the lengths of (runs, absences). The first and the last run are left out, because our own begin and end,
    or the neighbour's, bound them."""
    runs = [after[0] - before[1] for before, after in zip(gaps, gaps[1:])]
    return runs, [to - since for since, to in gaps]
