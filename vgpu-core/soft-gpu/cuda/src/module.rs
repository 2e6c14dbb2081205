//! Modules, libraries, kernels and functions. Code never runs. Names of kernels are looked up in a PTX image; a binary
//! image is assumed to have a kernel of any name. The static variables of PTX take memory. Every image also has kernels
//! whose names or arguments give their duration (see `timeline::Named`): `time_500us`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use soft_gpu::lock;

use soft_gpu::timeline::Named;
use vgpu_ptx::Variables;

use crate::code::{Code, FILE_NOT_FOUND, INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, Res};
use crate::context::{Context, here};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out, Text};

struct Image {
    /// Names of the kernels; None: any.
    kernels: Option<Vec<String>>,
    functions: Mutex<HashMap<String, u64>>,
    /// The context that has its code. In a real driver, a library's code is in all contexts. In this model it is only
    /// in the context that is current when the library is loaded, or else in the next one that is created. None: no
    /// context was created since.
    context: Mutex<Option<&'static Context>>,
    units: u64,
    /// Memory taken by the first launches of its functions.
    lazy: AtomicU64,
}

/// The contents of an image.
#[derive(Default)]
struct Contents {
    /// As in [`Image`].
    kernels: Option<Vec<String>>,
    /// Memory of its static variables; 0 for a binary image.
    variables: u64,
}

struct Function {
    name: &'static str,
    image: u64,
    /// The cost given by its name.
    named: Option<Named>,
    /// It was launched before, so its code is on the GPU.
    is_loaded: AtomicBool,
}

static IMAGES: RwLock<Option<HashMap<u64, Arc<Image>>>> = RwLock::new(None);
static FUNCTIONS: RwLock<Vec<Function>> = RwLock::new(Vec::new());
static FUNCTION_COUNT: AtomicUsize = AtomicUsize::new(0);
/// A function's handle is this plus its number, so that a launch checks it without a lock.
const FUNCTION: u64 = 0x5068_0000_0000;

/// Returns true if a handle names a function (or a kernel: they are the same here).
#[inline]
pub(crate) fn is_function(handle: u64) -> bool {
    (handle.wrapping_sub(FUNCTION) >> 4) < FUNCTION_COUNT.load(Ordering::Acquire) as u64
}

fn image(handle: u64) -> Result<Arc<Image>, Code> {
    let images = IMAGES.read().unwrap_or_else(PoisonError::into_inner);
    images
        .as_ref()
        .and_then(|images| images.get(&handle))
        .cloned()
        .ok_or(INVALID_HANDLE)
}

fn load(out: Out<u64>, Contents { kernels, variables }: Contents) -> Res {
    if !out.given() {
        return Err(INVALID_VALUE);
    }
    let driver = driver::get()?;
    let handle = driver.handle();
    let context = crate::context::current().ok();
    let profile = driver.state().profile();
    let units = (profile.module_cost / profile.granularity).saturating_add(driver.memory.units(variables));
    if let Some(context) = context {
        driver.memory.charge(driver, context.gpu, units)?;
    }
    let image = Image {
        kernels,
        functions: Mutex::default(),
        context: Mutex::new(context),
        units,
        lazy: AtomicU64::new(0),
    };
    let mut images = IMAGES.write().unwrap_or_else(PoisonError::into_inner);
    images.get_or_insert_default().insert(handle, Arc::new(image));
    out.set(handle)
}

fn unload(handle: u64) -> Res {
    let driver = driver::get()?;
    let mut images = IMAGES.write().unwrap_or_else(PoisonError::into_inner);
    let image = images.get_or_insert_default().remove(&handle).ok_or(INVALID_HANDLE)?;
    if let Some(context) = image.context() {
        driver.member().shrink(context.gpu, image.all_units());
    }
    Ok(())
}

impl Image {
    fn all_units(&self) -> u64 {
        self.units + self.lazy.load(Ordering::Relaxed)
    }

    fn context(&self) -> Option<&'static Context> {
        *lock(&self.context)
    }
}

/// Returns the memory that libraries need that were loaded while there was no context.
pub(crate) fn waiting() -> u64 {
    let images = IMAGES.read().unwrap_or_else(PoisonError::into_inner);
    let images = images.iter().flat_map(HashMap::values);
    images
        .filter(|image| image.context().is_none())
        .map(|image| image.units)
        .sum()
}

/// Assigns the code of these libraries to a new context.
pub(crate) fn place_waiting(context: &'static Context) {
    let images = IMAGES.read().unwrap_or_else(PoisonError::into_inner);
    for image in images.iter().flat_map(HashMap::values) {
        let mut place = lock(&image.context);
        place.get_or_insert(context);
    }
}

/// Unloads the code of a context that is being destroyed.
pub(crate) fn unload_all(driver: &Driver, dying: &'static Context) {
    let mut images = IMAGES.write().unwrap_or_else(PoisonError::into_inner);
    images.get_or_insert_default().retain(|_, image| {
        let own = image.context().is_some_and(|context| std::ptr::eq(context, dying));
        if own {
            driver.member().shrink(dying.gpu, image.all_units());
        }
        !own
    });
}

/// Names after `.entry` in PTX.
fn entries(ptx: &str) -> Vec<String> {
    let name = |rest: &str| {
        let rest = rest.trim_start();
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || "_$%".contains(c)))
            .unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    ptx.split(".entry")
        .skip(1)
        .map(name)
        .filter(|name| !name.is_empty())
        .collect()
}

fn contents(ptx: &str) -> Contents {
    let mut variables = Variables::default();
    ptx.bytes().for_each(|byte| variables.add(byte));
    Contents {
        kernels: Some(entries(ptx)),
        variables: variables.end(),
    }
}

/// Reads an image in memory. A binary starts with a byte that no text starts with.
fn scan(data: Text, first: In<[u8; 4]>) -> Result<Contents, Code> {
    let first = first.get()?;
    let binary = first == *b"\x7fELF" || first == [0x50, 0xed, 0x55, 0xba] || first == [0xb1, 0x43, 0x62, 0x46];
    if binary {
        return Ok(Contents::default());
    }
    let text = data.get()?;
    if text.contains(".version") || text.contains(".target") {
        Ok(contents(&text))
    } else {
        Err(INVALID_IMAGE)
    }
}

fn file(path: Text) -> Result<Contents, Code> {
    let bytes = std::fs::read(path.get()?).map_err(|_| FILE_NOT_FOUND)?;
    match String::from_utf8(bytes) {
        Ok(text) if text.contains(".version") => Ok(contents(&text)),
        _ => Ok(Contents::default()),
    }
}

fn function(handle: u64, name: &str) -> Result<u64, Code> {
    let image = image(handle)?;
    let named = Named::parse(name);
    let is_missing = |kernels: &Vec<String>| !kernels.iter().any(|one| one == name);
    if name.is_empty() || named.is_none() && image.kernels.as_ref().is_some_and(is_missing) {
        return Err(NOT_FOUND);
    }
    let mut known = lock(&image.functions);
    if let Some(function) = known.get(name) {
        return Ok(*function);
    }
    let mut functions = FUNCTIONS.write().unwrap_or_else(PoisonError::into_inner);
    let function = FUNCTION + ((functions.len() as u64) << 4);
    let lasting: &'static str = Box::leak(format!("{name}\0").into_boxed_str());
    functions.push(Function {
        name: lasting,
        image: handle,
        named,
        is_loaded: AtomicBool::new(false),
    });
    FUNCTION_COUNT.store(functions.len(), Ordering::Release);
    known.insert(name.to_owned(), function);
    Ok(function)
}

fn with_function<T>(handle: u64, act: impl FnOnce(&Function) -> T) -> Result<T, Code> {
    if !is_function(handle) {
        return Err(INVALID_HANDLE);
    }
    let functions = FUNCTIONS.read().unwrap_or_else(PoisonError::into_inner);
    functions
        .get(((handle - FUNCTION) >> 4) as usize)
        .map(act)
        .ok_or(INVALID_HANDLE)
}

/// Takes memory for the code of a function at its first launch.
#[inline]
pub(crate) fn load_lazily(driver: &Driver, handle: u64) -> Res {
    let profile = driver.state().profile();
    if profile.function_cost == 0 {
        return Ok(());
    }
    let is_first = |function: &Function| !function.is_loaded.swap(true, Ordering::AcqRel);
    let Some(image) = with_function(handle, |function| is_first(function).then_some(function.image))? else {
        return Ok(());
    };
    let image = self::image(image)?;
    if let Some(context) = image.context() {
        let units = profile.function_cost / profile.granularity;
        driver.memory.charge(driver, context.gpu, units)?;
        image.lazy.fetch_add(units, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns the cost given by a kernel's name; None also if there is no such function.
#[inline]
pub(crate) fn named(handle: u64) -> Option<Named> {
    with_function(handle, |function| function.named).ok().flatten()
}

fn attribute(out: Out<i32>, attribute: u32, handle: u64) -> Res {
    with_function(handle, |_| ())?;
    let (major, minor) = driver::get()?.state().profile().compute_capability;
    out.set(match attribute {
        0 => 1024,
        4 => 32,
        5 | 6 => (major * 10 + minor) as i32,
        8 => 49152,
        9 => -1,
        1..=16 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

soft_gpu::api! {
    fn cuModuleLoad(out: Out<u64>, path: Text) {
        here()?;
        load(out, file(path)?)
    }

    fn cuModuleLoadData(out: Out<u64>, image: Text) {
        here()?;
        load(out, scan(image, image.bytes())?)
    }

    fn cuModuleLoadDataEx(out: Out<u64>, image: Text, _count: u32, _options: In<u32>, _values: In<u64>) {
        here()?;
        load(out, scan(image, image.bytes())?)
    }

    fn cuModuleLoadFatBinary(out: Out<u64>, image: Text) {
        here()?;
        load(out, scan(image, image.bytes())?)
    }

    fn cuModuleUnload(module: u64) {
        unload(module)
    }

    fn cuModuleGetFunction(out: Out<u64>, module: u64, name: Text) {
        out.set(function(module, &name.get()?)?)
    }

    fn cuModuleGetFunctionCount(out: Out<u32>, module: u64) {
        out.set(image(module)?.kernels.as_ref().map_or(0, Vec::len) as u32)
    }

    fn cuModuleGetGlobal_v2(_address: Out<u64>, _size: Out<u64>, module: u64, _name: Text) {
        image(module)?;
        Err(NOT_FOUND)
    }

    fn cuModuleGetLoadingMode(out: Out<u32>) {
        driver::get()?;
        out.set(1)
    }

    fn cuLibraryLoadData(
        out: Out<u64>, image: Text, _jit: In<u32>, _jit_values: In<u64>, _jit_count: u32, _options: In<u32>,
        _values: In<u64>, _count: u32,
    ) {
        load(out, scan(image, image.bytes())?)
    }

    fn cuLibraryLoadFromFile(
        out: Out<u64>, path: Text, _jit: In<u32>, _jit_values: In<u64>, _jit_count: u32, _options: In<u32>,
        _values: In<u64>, _count: u32,
    ) {
        load(out, file(path)?)
    }

    fn cuLibraryUnload(library: u64) {
        unload(library)
    }

    fn cuLibraryGetKernel(out: Out<u64>, library: u64, name: Text) {
        out.set(function(library, &name.get()?)?)
    }

    fn cuLibraryGetModule(out: Out<u64>, library: u64) {
        image(library)?;
        out.set(library)
    }

    fn cuLibraryGetKernelCount(out: Out<u32>, library: u64) {
        out.set(image(library)?.kernels.as_ref().map_or(0, Vec::len) as u32)
    }

    fn cuLibraryEnumerateKernels(out: Out<u64>, room: u32, library: u64) {
        let names: Vec<String> = image(library)?.kernels.clone().unwrap_or_default();
        let handles = names.iter().take(room as usize).map(|name| function(library, name));
        out.fill(&handles.collect::<Result<Vec<u64>, Code>>()?)
    }

    fn cuKernelGetFunction(out: Out<u64>, kernel: u64) {
        with_function(kernel, |_| ())?;
        out.set(kernel)
    }

    fn cuKernelGetLibrary(out: Out<u64>, kernel: u64) {
        out.set(with_function(kernel, |function| function.image)?)
    }

    fn cuKernelGetName(out: Out<*const u8>, kernel: u64) {
        out.set(with_function(kernel, |function| function.name.as_ptr())?)
    }

    fn cuKernelGetAttribute(out: Out<i32>, number: u32, kernel: u64, _device: i32) {
        attribute(out, number, kernel)
    }

    fn cuKernelSetAttribute(_attribute: u32, _value: i32, kernel: u64, _device: i32) {
        with_function(kernel, |_| ())
    }

    fn cuKernelSetCacheConfig(kernel: u64, _config: u32, _device: i32) {
        with_function(kernel, |_| ())
    }

    fn cuFuncGetAttribute(out: Out<i32>, number: u32, function: u64) {
        attribute(out, number, function)
    }

    fn cuFuncSetAttribute(function: u64, _attribute: u32, _value: i32) {
        with_function(function, |_| ())
    }

    fn cuFuncSetCacheConfig(function: u64, _config: u32) {
        with_function(function, |_| ())
    }

    fn cuFuncSetSharedMemConfig(function: u64, _config: u32) {
        with_function(function, |_| ())
    }

    fn cuFuncGetModule(out: Out<u64>, function: u64) {
        out.set(with_function(function, |function| function.image)?)
    }

    fn cuFuncGetName(out: Out<*const u8>, function: u64) {
        out.set(with_function(function, |function| function.name.as_ptr())?)
    }

    fn cuFuncIsLoaded(out: Out<u32>, function: u64) {
        with_function(function, |_| ())?;
        out.set(1)
    }

    fn cuFuncLoad(function: u64) {
        with_function(function, |_| ())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_of_ptx() {
        let ptx = ".version 8.0\n.target sm_90\n.visible .entry _Z3addPf(\n.param .u64 p)\n{}\n.entry\n k2 () {}";
        assert_eq!(super::entries(ptx), ["_Z3addPf", "k2"]);
    }
}
