"""The types of `graphene._core`, a file for each part of the core. Nothing here can be imported at run time."""
