//! Whether a host can use a namespace.
use crate::wire::identify::IdentifyNamespace;

/// Bytes of a logical block of the namespace, where a command moves up to `transfer` bytes.
///
/// # Errors
/// Why blocks of it cannot be read or written.
pub fn block_size(identify: &IdentifyNamespace, transfer: u32) -> Result<u32, &'static str> {
    let format = identify.format().ok_or("it has no LBA format")?;
    if format.ms.get() != 0 {
        return Err("its blocks have metadata");
    }
    let block_size = format
        .block_size()
        .filter(|size| (512..=1 << 16).contains(size))
        .ok_or("its block size is not 512 bytes to 64 KiB")?;
    if transfer < block_size {
        return Err("a block is more than a command moves (MDTS)");
    }
    Ok(block_size)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;
    use crate::wire::identify::LbaFormat;

    #[test]
    fn says_what_is_wrong() {
        let mut identify = IdentifyNamespace::new_zeroed();
        for (lbads, ms, transfer, outcome) in [
            (9, 0, 4096, Ok(512)),
            (16, 0, 65536, Ok(65536)),
            (9, 8, 4096, Err("its blocks have metadata")),
            (0, 0, 4096, Err("its block size is not 512 bytes to 64 KiB")),
            (
                17,
                0,
                u32::MAX,
                Err("its block size is not 512 bytes to 64 KiB"),
            ),
            (
                13,
                0,
                4096,
                Err("a block is more than a command moves (MDTS)"),
            ),
        ] {
            identify.lbaf[0] = LbaFormat::new(lbads, ms);
            assert_eq!(block_size(&identify, transfer), outcome);
        }
        identify.flbas = identify.flbas.with_format_index(1);
        assert_eq!(block_size(&identify, 4096), Err("it has no LBA format"));
    }
}
