# Prints why a test failed, from the output of `cargo test`: the place of its panic and the message's first line. The
# cluster's tests have their own harness (libtest-mimic), which prints only the message.
# awk -v test=NAME -f why.awk FILE

/^---- .* ----$/ {
  is_panic = $0 == "---- " test " stdout ----"
  is_message = $0 == "---- " test " ----"
  next
}
is_panic && sub(/^thread .* panicked at /, "") { where = $0 " "; is_message = 1; next }
is_message && $0 != "" { print where substr($0, 1, 300); exit }
