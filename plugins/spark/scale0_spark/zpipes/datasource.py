"""What Spark knows under the name ``zpipes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema

from scale0_spark.zpipes.errors import OptionError
from scale0_spark.zpipes.options import Options, read_options
from scale0_spark.zpipes.payloads import SCHEMAS, check_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from scale0_spark.zpipes.sink import PipeStreamWriter, PipeWriter
    from scale0_spark.zpipes.source import PipeReader, PipeStreamReader


class ZpipesDataSource(DataSource):
    """Pipes of a Scale0 broker."""

    @classmethod
    def name(cls) -> str:
        """Give the word for ``format(...)``."""
        return "zpipes"

    def _read(self) -> Options:
        return read_options(self.options)

    def schema(self) -> StructType:
        """Say which columns there are."""
        return from_arrow_schema(SCHEMAS[self._read().payload])

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise OptionError("the columns cannot be chosen by .schema(...)", "", "", "choose them by .select(...)")

    def reader(self, schema: StructType) -> PipeReader:
        """Read what is there."""
        from scale0_spark.zpipes.source import PipeReader

        self._check_schema(schema)
        return PipeReader(self._read())

    def streamReader(self, schema: StructType) -> PipeStreamReader:  # noqa: N802
        """Read what comes."""
        from scale0_spark.zpipes.source import PipeStreamReader

        self._check_schema(schema)
        return PipeStreamReader(self._read())

    def writer(self, schema: StructType, overwrite: bool) -> PipeWriter:
        """Write a table."""
        from scale0_spark.zpipes.sink import PipeWriter

        return PipeWriter(self._for_writing(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PipeStreamWriter:  # noqa: N802
        """Write a stream."""
        from scale0_spark.zpipes.sink import PipeStreamWriter

        return PipeStreamWriter(self._for_writing(schema, overwrite=overwrite))

    def _for_writing(self, schema: StructType, *, overwrite: bool) -> Options:
        options = self._read()
        if overwrite:
            raise OptionError("a pipe is not overwritten", "", "", 'write .mode("append"), or outputMode append')
        check_columns(schema.fieldNames(), options.payload)
        _ = options.pipe
        return options
