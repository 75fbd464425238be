//! How far a copy is, kept in a file so that it can be resumed.
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::{Value, json};

/// Which copy it is: it is resumed only if nothing of this changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) source: String,
    pub(super) version: String,
    pub(super) destination: String,
    /// The source's first byte that is copied.
    pub(super) offset: u64,
    /// Bytes that are copied.
    pub(super) count: u64,
}

/// The file.
pub(super) struct State {
    path: PathBuf,
    copy: Copy,
}

impl State {
    pub(super) fn new(path: PathBuf, copy: Copy) -> Self {
        Self { path, copy }
    }

    /// What an earlier copy left, and how many bytes it got done. A file of anything else
    /// is not ours to replace.
    fn read(&self) -> anyhow::Result<Option<(Value, u64)>> {
        let name = self.path.display();
        let bytes = match fs::read(&self.path) {
            Ok(bytes) if bytes.is_empty() => return Ok(None),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
        };
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match value["done"].as_u64() {
            Some(done) => Ok(Some((value, done))),
            None => bail!(
                "{name} does not say how far a copy is: remove it, or name another file with \
                 --state"
            ),
        }
    }

    /// Fails if the file is one of something else.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.read().map(drop)
    }

    /// Bytes that an earlier copy got done; 0 if there was none.
    pub(super) fn load(&self) -> anyhow::Result<u64> {
        let Some((value, done)) = self.read()? else {
            return Ok(0);
        };
        let now = self.json(done);
        for key in ["source", "version", "destination", "offset", "count"] {
            if value[key] != now[key] {
                bail!(
                    "cannot resume: {key} was {}, and is {}; begin anew without --resume",
                    value[key],
                    now[key]
                );
            }
        }
        Ok(done)
    }

    /// So many bytes are done, and safe.
    pub(super) fn save(&self, done: u64) -> anyhow::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let new = Path::new(&new);
        let save = || -> io::Result<()> {
            let mut file = File::create(new)?;
            writeln!(file, "{}", self.json(done))?;
            file.sync_all()?;
            fs::rename(new, &self.path)
        };
        save()
            // No half of it stays.
            .inspect_err(|_| drop(fs::remove_file(new)))
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// It is over.
    pub(super) fn remove(&self) {
        // That of a copy which began anew is not there.
        let _ = fs::remove_file(&self.path);
    }

    fn json(&self, done: u64) -> Value {
        let copy = &self.copy;
        json!({
            "source": copy.source,
            "version": copy.version,
            "destination": copy.destination,
            "offset": copy.offset,
            "count": copy.count,
            "done": done,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_copy_is_resumed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let copy = Copy {
            source: "a".to_owned(),
            version: "1".to_owned(),
            destination: "b".to_owned(),
            offset: 1,
            count: 10,
        };
        let state = State::new(path.clone(), copy.clone());
        assert_eq!(state.load().unwrap(), 0);
        state.save(3).unwrap();
        state.save(7).unwrap();
        assert_eq!(state.load().unwrap(), 7);
        for (other, what) in [
            (
                Copy {
                    source: "c".to_owned(),
                    ..copy.clone()
                },
                "source",
            ),
            (
                Copy {
                    version: "2".to_owned(),
                    ..copy.clone()
                },
                "version",
            ),
            (
                Copy {
                    destination: "c".to_owned(),
                    ..copy.clone()
                },
                "destination",
            ),
            (
                Copy {
                    offset: 2,
                    ..copy.clone()
                },
                "offset",
            ),
            (Copy { count: 11, ..copy }, "count"),
        ] {
            let error = State::new(path.clone(), other).load().unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        fs::write(&path, "{}").unwrap();
        let error = state.load().unwrap_err().to_string();
        assert!(error.contains("does not say how far"), "{error}");
        assert_eq!(state.check().unwrap_err().to_string(), error);
        fs::write(&path, "").unwrap();
        state.check().unwrap();
        assert_eq!(state.load().unwrap(), 0);
        state.remove();
        assert_eq!(state.load().unwrap(), 0);
    }
}
