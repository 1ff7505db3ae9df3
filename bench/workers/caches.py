"""diskcache and joblib.Memory: hits of a cached function, a block at a time.

Run as a program in the environment of the peers: reads `NAME COUNT` lines, answers seconds.
"""

import sys
import time

PAD = "x" * 1000


def make(number):
    return {"n": number, "pad": PAD}


def diskcache_hits(folder):
    import diskcache

    cached = diskcache.Cache(folder + "/diskcache").memoize()(make)
    return lambda number: cached(number)


def joblib_hits(folder):
    import joblib

    cached = joblib.Memory(folder + "/joblib", verbose=0).cache(make)
    return lambda number: cached(number)


if __name__ == "__main__":
    folder = sys.argv[1]
    calls = {"diskcache": diskcache_hits(folder), "joblib": joblib_hits(folder)}
    for call in calls.values():
        for number in range(100):
            call(number)
    print("ready", flush=True)
    for line in sys.stdin:
        name, count = line.split()
        call = calls[name]
        began = time.perf_counter()
        for number in range(int(count)):
            assert call(number % 100)["n"] == number % 100
        print(time.perf_counter() - began, flush=True)
