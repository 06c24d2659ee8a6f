"""Configs: their schema, the registries of the classes they name, config files, and compilation."""
