"""The sections of `nearfar.toml`, as plain data. Features import them; they import no feature."""
