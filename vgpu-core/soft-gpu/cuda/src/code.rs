//! CUresult: codes, names, texts.

use crate::ffi::Out;

pub(crate) use soft_gpu::c::{Code, Res};

pub(crate) const INVALID_VALUE: Code = Code(1);
pub(crate) const OUT_OF_MEMORY: Code = Code(2);
pub(crate) const NOT_INITIALIZED: Code = Code(3);
pub(crate) const NO_DEVICE: Code = Code(100);
pub(crate) const INVALID_DEVICE: Code = Code(101);
pub(crate) const INVALID_IMAGE: Code = Code(200);
pub(crate) const INVALID_CONTEXT: Code = Code(201);
pub(crate) const UNSUPPORTED_LIMIT: Code = Code(215);
pub(crate) const FILE_NOT_FOUND: Code = Code(301);
pub(crate) const INVALID_HANDLE: Code = Code(400);
pub(crate) const ILLEGAL_STATE: Code = Code(401);
pub(crate) const NOT_FOUND: Code = Code(500);
pub(crate) const NOT_READY: Code = Code(600);
pub(crate) const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
pub(crate) const PEER_ACCESS_NOT_ENABLED: Code = Code(705);
pub(crate) const CONTEXT_IS_DESTROYED: Code = Code(709);
pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
pub(crate) const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
pub(crate) const NOT_SUPPORTED: Code = Code(801);
pub(crate) const SYSTEM_NOT_READY: Code = Code(802);
pub(crate) const STREAM_CAPTURE_UNMATCHED: Code = Code(903);
pub(crate) const CAPTURED_EVENT: Code = Code(907);
pub(crate) const GRAPH_EXEC_UPDATE_FAILURE: Code = Code(910);

const NAMES: &str = include_str!("../../names/cuda-errors.txt");

fn name_of(code: i32) -> Option<&'static str> {
    if code == 0 {
        return Some("CUDA_SUCCESS");
    }
    NAMES.lines().find_map(|line| {
        let (number, name) = line.split_once(' ')?;
        (number.parse() == Ok(code)).then_some(name)
    })
}

/// Returns a C string that is never freed, one for each code.
fn lasting(text: String) -> *const u8 {
    use std::collections::HashMap;
    use std::sync::{Mutex, OnceLock, PoisonError};
    static TEXTS: OnceLock<Mutex<HashMap<String, &'static str>>> = OnceLock::new();
    let mut texts = TEXTS
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    texts
        .entry(text)
        .or_insert_with_key(|text| Box::leak(format!("{text}\0").into_boxed_str()))
        .as_ptr()
}

fn answer(out: Out<*const u8>, text: Option<String>) -> Res {
    match text {
        Some(text) => out.set(lasting(text)),
        None => {
            out.set(std::ptr::null())?;
            Err(INVALID_VALUE)
        }
    }
}

soft_gpu::api! {
    fn cuGetErrorName(code: i32, name: Out<*const u8>) {
        answer(name, name_of(code).map(str::to_owned))
    }

    fn cuGetErrorString(code: i32, text: Out<*const u8>) {
        let words = name_of(code).map(|name| match name.strip_prefix("CUDA_ERROR_") {
            Some(rest) => rest.to_lowercase().replace('_', " "),
            None => "no error".into(),
        });
        answer(text, words)
    }
}
