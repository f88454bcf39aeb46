-- Redis gives a script these globals; scripts define none of their own.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV" }
max_line_length = 120

-- breaker_text.lua is inserted into the scripts that say so: what it defines, they may use.
files["agents/fuseboard/lua"] = {
    read_globals = { "whole", "read_breaker", "write_breaker", "read_override", "move", "append_transition" },
}
files["agents/fuseboard/lua/breaker_text.lua"] = { ignore = { "211" } }
