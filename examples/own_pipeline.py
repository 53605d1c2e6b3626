"""A pipeline of one's own: two stages, three items ahead, a timeline to open in Perfetto."""

import time

from headrace.pipeline import Pipeline, Stage, Trace


def fetch(number: int) -> int:
    time.sleep(0.01)
    return number


trace = Trace()
pipeline = Pipeline(range(20), [Stage("fetch", fetch, threads=3), Stage("square", lambda n: n * n)], staleness=3, trace=trace)
print(sum(pipeline))
for stage in pipeline.times:
    print(stage)
trace.save("trace.json")
