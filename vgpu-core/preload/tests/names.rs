//! Which names are the driver's.

#[path = "../src/name.rs"]
#[allow(dead_code, unreachable_pub, reason = "the library uses the rest")]
mod name;

use std::ffi::CString;

use name::Text;

fn check(question: fn(Text) -> bool, text: &str) -> bool {
    let text = CString::new(text).expect("no NUL");
    // SAFETY: `text` outlives the question.
    #[allow(unsafe_code)]
    let text = unsafe { Text::new(text.as_ptr().cast()) };
    question(text.expect("not null"))
}

/// Checks that the answer is the same for each of the words, which may be empty.
fn all(question: fn(Text) -> bool, answer: bool, words: &str) {
    for word in words.split(' ') {
        assert_eq!(check(question, word), answer, "{word:?}");
    }
}

#[test]
fn driver_libraries() {
    all(
        name::is_driver_library,
        true,
        "libcuda.so libcuda.so.1 /usr/local/cuda/compat/libcuda.so.535.104.05 ./libnvidia-ml.so.1 \
         libnvidia-ml.so /dev/vgpu/.driver/libcuda.so.1",
    );
    all(
        name::is_driver_library,
        false,
        " / libcuda libcuda.sock libcudart.so.12 libcuda.so.1/ libcuda.so.1/plugin.so mylibcuda.so.1 \
         libnvidia-mlx.so.1 libcudadebugger.so.1 libnvidia-ptxjitcompiler.so.1",
    );
}

#[test]
fn private_paths() {
    all(
        name::is_private,
        true,
        "/dev/vgpu/.driver/libcuda.so.1 /dev/vgpu/.driver/..libcuda /dev/vgpu/.driver/x",
    );
    assert!(check(name::is_spelled_by_shim, "///opt/driver/libcuda.so.1"));
    assert!(!check(name::is_spelled_by_shim, "/opt/driver/libcuda.so.1"));
    all(
        name::is_private,
        false,
        "///opt/driver/libcuda.so.1 libcuda.so.1 /dev/vgpu/libcuda.so.1 /dev/vgpu/.driver \
         /x/dev/vgpu/.driver/libcuda.so.1 /dev/vgpu/.driver/ /dev/vgpu/.driver/. /dev/vgpu/.driver/.. \
         /dev/vgpu/.driver/../../../tmp/evil.so /dev/vgpu/.driver/./libcuda.so.1 \
         /dev/vgpu/.driver//libcuda.so.1 /dev/vgpu/.driver/x/libcuda.so.1 /dev/vgpu/.driver/libcuda.so.1/",
    );
}

#[test]
fn driver_functions() {
    all(
        name::is_driver_function,
        true,
        "cuInit cuMemAlloc_v2 nvmlInit_v2 nvmlDeviceGetCount_v2 cudbgGetAPI",
    );
    all(
        name::is_driver_function,
        false,
        " cu nvml cudnnCreate cublasCreate cudaMalloc customize CuInit nvmlcpp malloc",
    );
}
