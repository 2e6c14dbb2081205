//! Rare calls that other interposers handle incorrectly.

use crate::alloc;
use crate::client::{Client, keep};
use crate::library::{call, size};
use std::ffi::{CString, c_int, c_void};

/// CU_POINTER_ATTRIBUTE_IS_MANAGED.
const IS_MANAGED: c_int = 8;

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    let cuda = client.cuda();
    Some(match name {
        // cuMemGetInfo with one of its two pointers null.
        "infofree" | "infototal" => {
            let (mut place, null) = (0_usize, std::ptr::null_mut());
            let pointers = if name == "infofree" {
                (&raw mut place, null)
            } else {
                (null, &raw mut place)
            };
            let result = call!(cuda, "cuMemGetInfo_v2" (*mut usize, *mut usize) (pointers.0, pointers.1));
            format!("{result} {place}")
        }
        "createhost" => keep(&mut client.handles, alloc::of_host(cuda, number as usize)).to_string(),
        // Asks with the call for one attribute and with the call for many.
        "ismanaged" => {
            let pointer = client.pointers[number as usize];
            let (mut one, mut many, mut attribute) = (-1, -1, IS_MANAGED);
            let mut values: *mut c_int = &mut many;
            let first = call!(cuda, "cuPointerGetAttribute" (*mut c_int, c_int, u64) (&mut one, IS_MANAGED, pointer));
            let second = call!(cuda, "cuPointerGetAttributes" (u32, *mut c_int, *mut *mut c_int, u64)
                (1, &mut attribute, &mut values, pointer));
            format!("{first} {} {second} {}", one & 0xff, many & 0xff)
        }
        // Any function that takes no arguments, or does not look at them.
        "call" => {
            let symbol = CString::new(value).expect("a name");
            // SAFETY: an open library and a C string.
            let function = unsafe { libc::dlsym(cuda, symbol.as_ptr()) };
            assert!(!function.is_null(), "{value} is not exported");
            // SAFETY: the caller of this client says that the function reads no arguments.
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(function)() }.to_string()
        }
        // Prints the answers of every family of calls when memory is out.
        "toomuch" => too_much(cuda, number),
        _ => return None,
    })
}

fn too_much(cuda: *mut c_void, bytes: u64) -> String {
    let bytes = bytes as usize;
    let errors = [
        alloc::plain(cuda, bytes).err(),
        alloc::managed(cuda, bytes).err(),
        alloc::pitched(cuda, bytes).err(),
        alloc::ordered(cuda, bytes, 0).err(),
        alloc::physical(cuda, bytes).err(),
        alloc::array(cuda, bytes).err(),
    ];
    errors.map(|error| error.unwrap_or(0).to_string()).join(" ")
}
