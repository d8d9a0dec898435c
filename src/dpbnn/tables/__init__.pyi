"""The public names and the modules that hold them; `dpbnn._lazy` imports each when it is first used."""

from dpbnn.tables.encoding import Encoded as Encoded
from dpbnn.tables.encoding import Encoding as Encoding
from dpbnn.tables.reading import Table as Table
from dpbnn.tables.reading import read_table as read_table
from dpbnn.tables.schema import Category as Category
from dpbnn.tables.schema import Number as Number
from dpbnn.tables.schema import Schema as Schema
from dpbnn.tables.schema import read_schema as read_schema
from dpbnn.tables.schema import template as template
