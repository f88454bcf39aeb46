-- Redis gives a script these globals; scripts define none of their own.
-- Run through tools/check_lua.py, which fills in the parts that several scripts share.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV" }
max_line_length = 120
