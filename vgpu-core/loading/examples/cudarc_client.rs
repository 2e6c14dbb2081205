//! cudarc, found at run time: LIMIT. Prints what the clients in `clients/` print.
#![allow(unsafe_code)] // cudarc's calls below its safe part.

use cudarc::driver::{CudaContext, result};
use std::io::Read;

fn main() {
    let limit: usize = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .expect("LIMIT");
    let context = CudaContext::new(0).expect("a context");
    let stream = context.default_stream();
    let kept = stream.alloc_zeros::<u8>(limit / 2).expect("half");
    let error = match stream.alloc_zeros::<u8>(limit / 2 + (2 << 20)) {
        Ok(_) => "none".into(),
        Err(error) => format!("{:?}", error.0),
    };
    let (free, total) = result::mem_get_info().expect("sizes");
    println!("answer {total} {error} {}", total - free);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(kept);
}
