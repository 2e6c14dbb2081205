//! Any function of the driver API: each line of the input is a call, each line of the output its result. Tests of
//! single functions use it, so they read like the calls that they make.
//!
//! ```text
//!  cuMemAlloc_v2 >1 4MiB          0         >1: the place of slot 1, to be written
//!  cuMemFree_v2 @1                0         @1: what slot 1 holds
//!  cuArrayCreate_v2 >2 [8,8,0x100000001]    a pointer to words; [...]>3:1 keeps word 1 in slot 3
//!  cuModuleLoadData >4 "..."                a pointer to text, \n and \s in it written so
//!  get 1                          the value of slot 1
//!  look 0                         NVML: bytes used on GPU 0, then PID:bytes of each process
//!  close @1, dup >2 @1            a descriptor
//!  storm SEED ROUNDS              4 threads allocate and free small ones, and keep some
//!  raw 1, put 1 WORDS             eight words of slot 1, read and written
//! ```

use crate::client::{Client, Handle};
use crate::library::call;
use crate::storm::numbers_from;
use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::io::Write;

type Any = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize, usize, usize) -> c_int;

/// The client, and what calls have written, by slot.
struct Calls<'a> {
    client: &'a mut Client,
    slots: HashMap<u64, Box<[u64; 32]>>,
}

/// The slot for a word that a call writes.
struct Kept {
    words: Box<[u64]>,
    slot: u64,
    word: usize,
}

fn number(text: &str) -> u64 {
    let (digits, shift) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .iter()
        .find_map(|(unit, shift)| text.strip_suffix(unit).map(|rest| (rest, *shift)))
        .unwrap_or((text, 0));
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    value.unwrap_or_else(|_| panic!("{text} is no number")) << shift
}

impl Calls<'_> {
    fn function(&mut self, name: &str) -> *mut c_void {
        let library = if name.starts_with("nvml") {
            self.client.nvml()
        } else {
            self.client.cuda()
        };
        let symbol = CString::new(name).expect("a name");
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(library, symbol.as_ptr()) };
        assert!(!found.is_null(), "{name} is not exported");
        found
    }

    fn slot(&mut self, slot: u64) -> &mut [u64; 32] {
        self.slots.entry(slot).or_insert_with(|| Box::new([0; 32]))
    }

    fn value(&mut self, text: &str) -> u64 {
        match text.strip_prefix('@') {
            Some(slot) => self.slot(number(slot))[0],
            None => number(text),
        }
    }

    fn call(&mut self, name: &str, arguments: &[&str]) -> c_int {
        if name.starts_with("cuIpcOpenMemHandle") {
            let (mut pointer, cuda) = (0, self.client.cuda());
            let source = number(&arguments[1][1..]);
            let handle = Handle(std::array::from_fn(|word| self.slot(source)[word]));
            let result = call!(cuda, "cuIpcOpenMemHandle_v2" (*mut u64, Handle, u32) (&mut pointer, handle, 1));
            self.slot(number(&arguments[0][1..]))[0] = pointer;
            return result;
        }
        let (mut registers, mut kept, mut texts) = ([0_usize; 10], Vec::new(), Vec::new());
        for (register, argument) in registers.iter_mut().zip(arguments) {
            *register = match argument.as_bytes()[0] {
                b'>' => self.slot(number(&argument[1..])).as_mut_ptr() as usize,
                b'"' => {
                    let text = argument.trim_matches('"').replace("\\n", "\n").replace("\\s", " ");
                    texts.push(CString::new(text).expect("text"));
                    texts[texts.len() - 1].as_ptr() as usize
                }
                b'[' => {
                    let (list, rest) = argument[1..].split_once(']').expect("an end");
                    let values = list.split(',').filter(|word| !word.is_empty());
                    let mut words: Vec<u64> = values.map(|word| self.value(word)).collect();
                    // Room for bytes that the driver may read or write beyond the end.
                    words.resize(words.len() + 64, 0);
                    let mut words = words.into_boxed_slice();
                    let at = words.as_mut_ptr() as usize;
                    let keep = rest.strip_prefix('>').and_then(|rest| rest.split_once(':'));
                    let (slot, word) = keep.map_or((u64::MAX, 0), |(slot, word)| (number(slot), number(word) as usize));
                    kept.push(Kept { words, slot, word });
                    at
                }
                _ => self.value(argument) as usize,
            };
        }
        // SAFETY: integers and pointers alone, each in a register or a word of the stack of its own.
        let function = unsafe { std::mem::transmute::<*mut c_void, Any>(self.function(name)) };
        let [a, b, c, d, e, f, g, h, i, j] = registers;
        // SAFETY: the caller of this client says what the function takes.
        let result = unsafe { function(a, b, c, d, e, f, g, h, i, j) };
        for kept in kept.into_iter().filter(|kept| kept.slot != u64::MAX) {
            // SAFETY: within the words, which the driver may have written behind the compiler's back.
            self.slot(kept.slot)[0] = unsafe { kept.words.as_ptr().add(kept.word).read_volatile() };
        }
        result
    }

    /// Returns how many calls failed, in all threads.
    fn storm(&mut self, seed: u64, rounds: u64) -> u64 {
        let (library, context) = (self.client.cuda() as usize, self.slot(9001)[0]);
        let thread = move |thread: u64| {
            let cuda = library as *mut c_void;
            let mut next = numbers_from((seed * 4 + thread).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
            let mut next = move || next() >> 11;
            let mut failed = u64::from(call!(cuda, "cuCtxSetCurrent"(u64)(context)) != 0);
            let mut live = Vec::new();
            for _ in 0..rounds {
                if live.len() < 40 && (next() % 2 == 0 || live.is_empty()) {
                    let (mut pointer, size) = (0_u64, 512_usize << (next() % 13));
                    let result = call!(cuda, "cuMemAlloc_v2" (*mut u64, usize) (&mut pointer, size));
                    failed += u64::from(result != 0);
                    live.push(pointer);
                } else {
                    let pointer = live.swap_remove(next() as usize % live.len());
                    failed += u64::from(call!(cuda, "cuMemFree_v2"(u64)(pointer)) != 0);
                }
            }
            failed
        };
        let threads: Vec<_> = (0..4).map(|index| std::thread::spawn(move || thread(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).sum()
    }

    fn line(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["get", slot] => self.slot(number(slot))[0].to_string(),
            ["set", slot, value] => {
                let value = self.value(value);
                self.slot(number(slot))[0] = value;
                "0".into()
            }
            // SAFETY: takes no pointers.
            ["close", value] => unsafe { libc::close(self.value(value) as c_int) }.to_string(),
            ["dup", slot, value] => {
                // SAFETY: takes no pointers.
                let copy = unsafe { libc::dup(self.value(value) as c_int) };
                self.slot(number(&slot[1..]))[0] = copy as u64;
                i32::from(copy < 0).to_string()
            }
            ["raw", slot] => self.slot(number(slot))[..8]
                .iter()
                .map(|word| format!("{word} "))
                .collect(),
            ["put", slot, values @ ..] => {
                for (word, value) in values.iter().enumerate() {
                    self.slot(number(slot))[word] = number(value);
                }
                "0".into()
            }
            ["look", gpu] => {
                let view = self.client.view(number(gpu) as u32);
                format!("{} {}", view.used, view.users.join(" "))
            }
            ["storm", seed, rounds] => self.storm(number(seed), number(rounds)).to_string(),
            [name, arguments @ ..] => self.call(name, arguments).to_string(),
            [] => String::new(),
        }
    }
}

/// Makes the calls on stdin, until its end.
pub(crate) fn serve(client: &mut Client) {
    let mut calls = Calls {
        client,
        slots: HashMap::new(),
    };
    for line in std::io::stdin().lines() {
        let answer = calls.line(&line.expect("a line"));
        println!("{answer}");
        std::io::stdout().flush().expect("stdout");
    }
}
