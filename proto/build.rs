//! Compiles kubelet/*.proto with protox, a protobuf compiler in Rust: no protoc is needed.

const FILES: [&str; 6] = [
    "dra-v1.proto",
    "dra-v1beta1.proto",
    "health-v1.proto",
    "health-v1alpha1.proto",
    "podresources-v1.proto",
    "registration-v1.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=kubelet");
    let descriptors = protox::compile(FILES, ["kubelet"])?;
    // BTreeMap writes the entries of a response in one order, so that equal answers are equal bytes.
    tonic_prost_build::configure().btree_map(".").compile_fds(descriptors)?;
    Ok(())
}
