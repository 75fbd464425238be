//! File systems and block devices that root may make for a test.
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// Runs a command that root may run; `None` when it fails.
fn as_root(command: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(command).args(arguments).output().ok()?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        eprintln!("skipped: {command} {arguments:?}: {}", error.trim());
        return None;
    }
    Some(String::from_utf8(output.stdout).unwrap().trim().to_owned())
}

/// A file system of its own in memory.
pub(super) struct Mounted(TempDir);

impl Mounted {
    pub(super) fn tmpfs(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        let options = format!("size={size},mode=700");
        as_root("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", at])?;
        Some(Self(directory))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        as_root("umount", &["-l", self.0.path().to_str().unwrap()]);
    }
}

/// A block device whose contents are a file's.
pub(super) struct Loop(String);

impl Loop {
    pub(super) fn over(backing: &Path, block: u32) -> Option<Self> {
        let backing = backing.to_str().unwrap();
        let block = block.to_string();
        as_root("losetup", &["--find", "--show", "-b", &block, backing]).map(Self)
    }

    pub(super) fn path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        as_root("losetup", &["--detach", &self.0]);
    }
}
