//! Steps that an administrator of GPUs in MIG mode makes, as `nvidia-smi mig` does:
//!
//! ```text
//!  migmode:0:1               GPU 0 is put into MIG mode: NVML's code, and why the mode is pending
//!  migcreate:0:3g.40gb@4     an instance with a compute instance that fills it: NVML's code and the UUID
//!  miggi:0:3g.40gb@4         a GPU instance without a compute instance: NVML's code and its id
//!  migci:0:2:1               in the GPU instance with id 2, a compute instance of profile 1: NVML's code and the UUID
//!  migend:0:2                the GPU instance with id 2 and its compute instances are ended: NVML's code
//!  miglist:0                 NVML's code, and each GPU instance: id:profile@start, then +id of each compute instance
//! ```

use crate::client::Client;
use crate::library::call;
use std::ffi::{c_char, c_int, c_void};

/// nvmlGpuInstanceProfileInfo_v2_t in words: version and id, ..., the name from byte 56 on.
type Profile = [u64; 19];
const VERSION_2: u64 = 0x0200_0098;
/// The number of the last profile in NVML's queries.
const LAST: u32 = 0x11;
/// The compute slices of NVML's profiles of compute instances, by id.
const SLICES: [u32; 5] = [1, 2, 3, 4, 7];

pub(crate) fn step(client: &mut Client, name: &str, value: &str) -> Option<String> {
    let words: Vec<&str> = value.split(':').collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
    let mut mig = || Mig {
        device: client.device(number(0)),
        nvml: client.nvml(),
    };
    Some(match name {
        "migmode" => mig().mode(number(1)),
        "migcreate" => answer(mig().create(words[1]).and_then(|(mig, made)| mig.fill(made))),
        "miggi" => answer(
            mig()
                .create(words[1])
                .and_then(|(mig, made)| Ok(mig.info(made)?[2].to_string())),
        ),
        "migci" => {
            let mig = mig();
            answer(mig.by_id(number(1)).and_then(|gi| mig.compute(gi, number(2))))
        }
        "migend" => {
            let mig = mig();
            answer(mig.by_id(number(1)).and_then(|gi| mig.end(gi)))
        }
        "miglist" => answer(mig().list()),
        _ => return None,
    })
}

fn answer(result: Result<String, c_int>) -> String {
    result.map_or_else(
        |code| code.to_string(),
        |text| format!("0 {text}").trim_end().to_owned(),
    )
}

fn ok(code: c_int) -> Result<(), c_int> {
    match code {
        0 => Ok(()),
        code => Err(code),
    }
}

/// A GPU.
struct Mig {
    device: usize,
    nvml: *mut c_void,
}

impl Mig {
    fn mode(&self, on: u32) -> String {
        let mut activated = 0;
        let code = call!(self.nvml, "nvmlDeviceSetMigMode" (usize, u32, *mut c_int) (self.device, on, &mut activated));
        format!("{code} {activated}")
    }

    fn profiles(&self) -> impl Iterator<Item = (u32, String)> {
        (0..=LAST).filter_map(|number| {
            let mut info: Profile = [0; 19];
            info[0] = VERSION_2;
            let words = info.as_mut_ptr();
            let ask = call!(self.nvml, "nvmlDeviceGetGpuInstanceProfileInfoV" (usize, u32, *mut u64) (self.device, number, words));
            let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).skip(56).collect();
            let name = String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next()?).replace("MIG ", "");
            (ask == 0).then_some(((info[0] >> 32) as u32, name))
        })
    }

    /// Makes a GPU instance, such as `3g.40gb@4`.
    fn create(self, wanted: &str) -> Result<(Self, usize), c_int> {
        let (name, start) = wanted.split_once('@').unwrap_or((wanted, "0"));
        let found = self.profiles().find(|(_, known)| known == name);
        let (profile, _) = found.ok_or(-1)?;
        let (place, mut made) = ([start.parse::<u32>().map_err(|_| -1)?, 0], 0);
        ok(
            call!(self.nvml, "nvmlDeviceCreateGpuInstanceWithPlacement" (usize, u32, *const u32, *mut usize)
            (self.device, profile, place.as_ptr(), &mut made)),
        )?;
        Ok((self, made))
    }

    /// nvmlGpuInstanceInfo_t in words of 32 bits: GPU, id, profile, start, size.
    fn info(&self, gi: usize) -> Result<[u32; 6], c_int> {
        let mut info = [0; 6];
        let words = info.as_mut_ptr();
        ok(call!(self.nvml, "nvmlGpuInstanceGetInfo" (usize, *mut u32) (gi, words)))?;
        Ok(info)
    }

    fn by_id(&self, id: u32) -> Result<usize, c_int> {
        let mut gi = 0;
        ok(call!(self.nvml, "nvmlDeviceGetGpuInstanceById" (usize, u32, *mut usize) (self.device, id, &mut gi)))?;
        Ok(gi)
    }

    /// Makes the compute instance that fills a GPU instance.
    fn fill(&self, gi: usize) -> Result<String, c_int> {
        let fits = |profile: &u32| {
            let (mut info, profile) = ([0_u32; 9], *profile);
            let words = info.as_mut_ptr();
            let ask = call!(self.nvml, "nvmlGpuInstanceGetComputeInstanceProfileInfo" (usize, u32, u32, *mut u32) (gi, profile, 0, words));
            ask == 0 && info[2] == 1
        };
        let profile = (0..SLICES.len() as u32).rev().find(fits).ok_or(-1)?;
        self.compute(gi, profile)
    }

    fn compute(&self, gi: usize, profile: u32) -> Result<String, c_int> {
        let (mut ci, mut info, mut uuid) = (0_usize, [0_usize; 4], [0_u8; 96]);
        ok(call!(self.nvml, "nvmlGpuInstanceCreateComputeInstance" (usize, u32, *mut usize) (gi, profile, &mut ci)))?;
        ok(call!(self.nvml, "nvmlComputeInstanceGetInfo_v2" (usize, *mut usize) (ci, info.as_mut_ptr())))?;
        ok(call!(self.nvml, "nvmlDeviceGetUUID" (usize, *mut c_char, u32) (info[0], uuid.as_mut_ptr().cast(), 96)))?;
        Ok(String::from_utf8_lossy(uuid.split(|byte| *byte == 0).next().unwrap_or(&[])).into_owned())
    }

    /// The compute instances of a GPU instance.
    fn computes(&self, gi: usize) -> Vec<usize> {
        let of = |profile: u32| {
            let (mut list, mut count) = ([0_usize; 8], 0_u32);
            let ask = call!(self.nvml, "nvmlGpuInstanceGetComputeInstances" (usize, u32, *mut usize, *mut u32)
                (gi, profile, list.as_mut_ptr(), &mut count));
            list.into_iter().take(if ask == 0 { count as usize } else { 0 })
        };
        (0..SLICES.len() as u32).flat_map(of).collect()
    }

    fn end(&self, gi: usize) -> Result<String, c_int> {
        for ci in self.computes(gi) {
            ok(call!(self.nvml, "nvmlComputeInstanceDestroy"(usize)(ci)))?;
        }
        ok(call!(self.nvml, "nvmlGpuInstanceDestroy"(usize)(gi)))?;
        Ok(String::new())
    }

    fn list(&self) -> Result<String, c_int> {
        let mut text = Vec::new();
        for (profile, name) in self.profiles() {
            let (mut list, mut count) = ([0_usize; 16], 0_u32);
            ok(
                call!(self.nvml, "nvmlDeviceGetGpuInstances" (usize, u32, *mut usize, *mut u32)
                (self.device, profile, list.as_mut_ptr(), &mut count)),
            )?;
            for gi in list.into_iter().take(count as usize) {
                let [_, _, id, _, start, _] = self.info(gi)?;
                let mut one = format!("{id}:{name}@{start}");
                for ci in self.computes(gi) {
                    let mut info = [0_u32; 8];
                    ok(call!(self.nvml, "nvmlComputeInstanceGetInfo_v2" (usize, *mut u32) (ci, info.as_mut_ptr())))?;
                    one += &format!("+{}", info[4]);
                }
                text.push(one);
            }
        }
        Ok(text.join(" "))
    }
}
