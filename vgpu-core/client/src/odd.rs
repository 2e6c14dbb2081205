//! Calls that programs make seldom, and that other interposers got wrong.

use crate::client::Client;
use crate::library::{call, size};
use std::ffi::{CString, c_int, c_void};

/// CU_POINTER_ATTRIBUTE_IS_MANAGED.
const IS_MANAGED: c_int = 8;

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    let cuda = client.cuda();
    Some(match name {
        // cuMemGetInfo with one place only.
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
        // Physical memory of the host: CU_MEM_LOCATION_TYPE_HOST_NUMA, node 0.
        "createhost" => {
            let properties: [u32; 8] = [1, 0, 3, 0, 0, 0, 0, 0];
            let mut handle = 0_u64;
            let result = call!(cuda, "cuMemCreate" (*mut u64, usize, *const u32, u64)
                (&mut handle, number as usize, properties.as_ptr(), 0));
            if result == 0 {
                client.handles.push(handle);
            }
            result.to_string()
        }
        // By the call for one attribute, and by the call for many.
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
        // Out of memory by every family: their answers.
        "toomuch" => too_much(cuda, number),
        _ => return None,
    })
}

fn too_much(cuda: *mut c_void, bytes: u64) -> String {
    let (mut pointer, mut pitch, mut array) = (0_u64, 0_usize, 0_usize);
    let (properties, descriptor) = ([1_u64, 1, 0, 0], [2048_u64, bytes >> 15, 4 << 32 | 0x20]);
    let bytes = bytes as usize;
    let answers = [
        call!(cuda, "cuMemAlloc_v2" (*mut u64, usize) (&mut pointer, bytes)),
        call!(cuda, "cuMemAllocManaged" (*mut u64, usize, u32) (&mut pointer, bytes, 1)),
        call!(cuda, "cuMemAllocPitch_v2" (*mut u64, *mut usize, usize, usize, u32)
            (&mut pointer, &mut pitch, 1024, bytes / 1024, 4)),
        call!(cuda, "cuMemAllocAsync" (*mut u64, usize, usize) (&mut pointer, bytes, 0)),
        call!(cuda, "cuMemCreate" (*mut u64, usize, *const u64, u64) (&mut pointer, bytes, properties.as_ptr(), 0)),
        call!(cuda, "cuArrayCreate_v2" (*mut usize, *const u64) (&mut array, descriptor.as_ptr())),
    ];
    answers.map(|answer| answer.to_string()).join(" ")
}
