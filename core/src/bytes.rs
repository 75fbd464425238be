//! Copying that cannot panic.

/// Copies as much of `from` as fits to the start of `to`.
pub(crate) fn copy_prefix(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
        to.copy_from_slice(from);
    }
}
