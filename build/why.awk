# Why a test failed: where it panicked and the first line of what it said, of the output of `cargo test`.
# awk -v test=NAME -f why.awk FILE

BEGIN { head = "---- " test " stdout ----" }
/^---- .* stdout ----$/ { inside = $0 == head; next }
inside && sub(/^thread .* panicked at /, "") { where = $0; next }
inside && where != "" { print where " " substr($0, 1, 300); exit }
