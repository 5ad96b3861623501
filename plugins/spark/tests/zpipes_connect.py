"""Pipes through Spark Connect, in a process of its own: one process has sessions of one sort.

Run as ``python zpipes_connect.py REMOTE ADDRESS SOURCE TARGET FOLDER``: it writes the first three chunks of a pipe to
another one as a table, and then all of them as a stream.
"""

from __future__ import annotations

import sys

from scale0_spark.session import open_session
from scale0_spark.zpipes import register


def main(remote: str, address: str, source: str, target: str, folder: str) -> None:
    """Copy."""
    with open_session("pipes", remote=remote) as spark:
        register(spark)
        some = spark.read.format("zpipes").options(broker=address, pipe=source).load().where("sequence <= 3")
        table = some.select("data").write.format("zpipes").options(broker=address, pipe=target)
        table.mode("append").save()
        rows = spark.readStream.format("zpipes").options(broker=address, pipe=source, maxRowsPerTrigger="60").load()
        written = rows.select("data").writeStream.format("zpipes").options(broker=address, pipe=target)
        query = written.option("checkpointLocation", folder).trigger(availableNow=True).start()
        query.awaitTermination()
        failure = query.exception()
        if failure is not None:
            raise failure


if __name__ == "__main__":
    main(*sys.argv[1:])
