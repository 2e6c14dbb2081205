# Why a test failed, from what `cargo test` printed: the place of its panic and the first line of what it said. The
# cluster's tests have their own harness (libtest-mimic), which prints what they said alone.
# awk -v test=NAME -f why.awk FILE

/^---- .* ----$/ {
  is_panic = $0 == "---- " test " stdout ----"
  is_message = $0 == "---- " test " ----"
  next
}
is_panic && sub(/^thread .* panicked at /, "") { where = $0 " "; is_message = 1; next }
is_message && $0 != "" { print where substr($0, 1, 300); exit }
