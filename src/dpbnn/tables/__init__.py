"""From a file with a table to numbers that a network can take, by what is public about its columns.

schema     what is public: columns, ranges, categories, the target, whose row it is
reading    a CSV or Parquet file as columns of text
encoding   columns as numbers between -1 and 1: clipped, scaled, one for each category
fitting    a private model from a file, through interruptions
model      what is left: a release, and how rows become what it takes
reporting  predictions as columns, figures with a caution
"""

from dpbnn.tables.encoding import Encoded, Encoding
from dpbnn.tables.reading import Table, read_table
from dpbnn.tables.schema import Category, Number, Schema, read_schema, template

__all__ = ["Category", "Encoded", "Encoding", "Number", "Schema", "Table", "read_schema", "read_table", "template"]
