//! Decodes defmt frames: the firmware's ELF file is the argument, the frames are
//! standard input. One line a frame: when, how grave, and what.
use std::error::Error;
use std::io::{Read, stdin};
use std::{env, fs};

use defmt_decoder::{DecodeError, Table};

fn main() -> Result<(), Box<dyn Error>> {
    let elf = env::args_os().nth(1).ok_or("the firmware's ELF file?")?;
    let table = Table::parse(&fs::read(elf)?)?.ok_or("no defmt in that file")?;
    let mut frames = Vec::new();
    stdin().read_to_end(&mut frames)?;
    let mut decoder = table.new_stream_decoder();
    decoder.received(&frames);
    loop {
        match decoder.decode() {
            Ok(frame) => println!("{}", frame.display(false)),
            Err(DecodeError::UnexpectedEof) => return Ok(()),
            Err(DecodeError::Malformed) => return Err("a frame is malformed".into()),
        }
    }
}
