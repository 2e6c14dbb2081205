//! Steps that allocate and free memory of every family.

use crate::alloc;
use crate::client::{Client, keep};
use crate::library::{call, size};
use std::ffi::c_int;

const GRANULE: u64 = 2 << 20;

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let number = size(value);
    Some(match name {
        "alloc" => client.allocate(number).to_string(),
        "allocfree" => {
            let (_, free, _) = client.info();
            client.allocate(free / GRANULE * GRANULE).to_string()
        }
        "free" => client.free(number as usize).to_string(),
        "freeunknown" => call!(client.cuda(), "cuMemFree_v2"(u64)(0x1234_0000)).to_string(),
        "async" => {
            let made = alloc::ordered(client.cuda(), number as usize, 0);
            keep(&mut client.pointers, made).to_string()
        }
        "freeasync" => {
            let pointer = client.pointers.remove(number as usize);
            let cuda = client.cuda();
            let result = call!(cuda, "cuMemFreeAsync"(u64, usize)(pointer, 0));
            let synced = call!(cuda, "cuStreamSynchronize"(usize)(0));
            format!("{result} {synced}")
        }
        "managed" => {
            let made = alloc::managed(client.cuda(), number as usize);
            keep(&mut client.pointers, made).to_string()
        }
        "pitch" => {
            let made = alloc::pitched(client.cuda(), number as usize);
            let pitch = made.map_or(0, |(_, pitch)| pitch);
            format!(
                "{} {pitch}",
                keep(&mut client.pointers, made.map(|(pointer, _)| pointer))
            )
        }
        "create" => {
            let made = alloc::physical(client.cuda(), number as usize);
            keep(&mut client.handles, made).to_string()
        }
        "release" => {
            let handle = client.handles.remove(number as usize);
            call!(client.cuda(), "cuMemRelease"(u64)(handle)).to_string()
        }
        "array" => {
            let made = alloc::array(client.cuda(), number as usize);
            keep(&mut client.arrays, made).to_string()
        }
        "arrayfree" => {
            let array = client.arrays.remove(number as usize);
            call!(client.cuda(), "cuArrayDestroy"(usize)(array)).to_string()
        }
        _ => return pool(client, name, number),
    })
}

fn pool(client: &mut Client, name: &str, number: u64) -> Option<String> {
    Some(match name {
        "pool" => {
            // CUmemPoolProps: pinned, no export, device 0.
            let properties: [u32; 22] = std::array::from_fn(|word| u32::from(word == 0 || word == 2));
            let mut pool = 0;
            let cuda = client.cuda();
            let result = call!(cuda, "cuMemPoolCreate" (*mut usize, *const u32) (&mut pool, properties.as_ptr()));
            client.pools.push(pool);
            result.to_string()
        }
        "from" => {
            let pool = client.pools[client.pools.len() - 1];
            let made = alloc::from_pool(client.cuda(), number as usize, pool);
            keep(&mut client.pointers, made).to_string()
        }
        "choose" => {
            let pool = client.pools[number as usize];
            call!(client.cuda(), "cuDeviceSetMemPool"(c_int, usize)(0, pool)).to_string()
        }
        "pooldestroy" => {
            let pool = client.pools[number as usize];
            call!(client.cuda(), "cuMemPoolDestroy"(usize)(pool)).to_string()
        }
        _ => return None,
    })
}
