//! Configured sizes of a GPU's memory, for products of whose memory the driver has no figure: `PRODUCT=QUANTITY`, as the
//! plugin's and `vgpu run`'s flag `--gpu-memory` take them.

use vgpu_quantity::{WholeError, quoted, whole};

use crate::request::{MEMORY_MAX, MEMORY_MIN, MEMORY_STEP};

/// Why a configured size is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    #[error("{}: not PRODUCT=QUANTITY, such as 'NVIDIA GB10=96Gi'; nvidia-smi -L prints the product", quoted(.0))]
    Form(String),
    #[error("{}: {reason}", quoted(.text))]
    Quantity { text: String, reason: WholeError },
    #[error("{}: the size is not within 64Mi and 10Ti", quoted(.0))]
    Size(String),
    #[error("{}: the product has a size already", quoted(.0))]
    Twice(String),
}

/// Returns product and bytes, in whole MiB.
///
/// # Errors
/// The text is not of this form, or no GPU has such a size.
pub fn parse(text: &str) -> Result<(String, u64), SizeError> {
    let form = || SizeError::Form(text.to_owned());
    let (product, size) = text.rsplit_once('=').ok_or_else(form)?;
    if product.trim().is_empty() {
        return Err(form());
    }
    let bytes = whole(size).map_err(|reason| SizeError::Quantity {
        text: text.to_owned(),
        reason,
    })?;
    let bytes = u64::try_from(bytes)
        .ok()
        .filter(|bytes| (MEMORY_MIN..=MEMORY_MAX).contains(bytes));
    let bytes = bytes.ok_or_else(|| SizeError::Size(text.to_owned()))?;
    Ok((product.to_owned(), bytes / MEMORY_STEP * MEMORY_STEP))
}

/// The same for several texts.
///
/// # Errors
/// The first text that is not valid, or names a product again.
pub fn parse_all<'a, T: FromIterator<(String, u64)>>(texts: impl IntoIterator<Item = &'a str>) -> Result<T, SizeError> {
    let mut sizes: Vec<(String, u64)> = Vec::new();
    for text in texts {
        let (product, bytes) = parse(text)?;
        if sizes.iter().any(|(known, _)| *known == product) {
            return Err(SizeError::Twice(text.to_owned()));
        }
        sizes.push((product, bytes));
    }
    Ok(sizes.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_has_a_size_in_whole_mebibytes() {
        let parsed = |text| parse(text).expect("a size");
        assert_eq!(parsed("NVIDIA GB10=96Gi"), ("NVIDIA GB10".to_owned(), 96 << 30));
        assert_eq!(parsed("a=b=67108865").1, 64 << 20);
        assert_eq!(parsed("a=b=67108865").0, "a=b");
        for (text, said) in [
            ("NVIDIA GB10", "not PRODUCT=QUANTITY"),
            ("=96Gi", "not PRODUCT=QUANTITY"),
            ("NVIDIA GB10=", "NVIDIA GB10="),
            ("NVIDIA GB10=96GB", "NVIDIA GB10=96GB"),
            ("NVIDIA GB10=96", "not within 64Mi and 10Ti"),
            ("NVIDIA GB10=-1Gi", "NVIDIA GB10=-1Gi"),
            ("NVIDIA GB10=11Ti", "not within 64Mi and 10Ti"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        let twice = parse_all::<Vec<_>>(["a=1Gi", "b=1Gi", "a=2Gi"]);
        assert_eq!(twice, Err(SizeError::Twice("a=2Gi".to_owned())));
    }
}
