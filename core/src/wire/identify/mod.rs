//! What the Identify command returns (NVMe Base 2.1, section 5.1.13; NVM
//! Command Set 1.1, section 4.1.5): one structure family a file, every one of them 4096 bytes.
mod capability;
mod controller;
mod descriptor;
mod independent;
mod list;
mod namespace;
mod nvm;
mod power;

pub use capability::{
    Anacap, Apsta, Bpcap, Cmic, Crcap, Ctratt, Dsto, Fcatt, FlushBehavior, Fna, Frmw, Fuses, Hctma,
    Kpioc, Lpa, Mec, Nvmsr, Nwpc, Oacs, Oaes, Ocfs, Ofcs, Oncs, Plsi, QueueEntrySizes, Rpmbs,
    Sanicap, SglSupport, Sgls, Trattr, VendorFormat, Vwc, Vwci,
};
pub use controller::{ControllerType, DiscoveryType, IdentifyController};
pub use descriptor::{
    DESCRIPTORS_SIZE, DescriptorError, DescriptorWriter, Descriptors, NamespaceDescriptor, Nidt,
    descriptors,
};
pub use independent::{IndependentNamespace, IndependentNsfeat, Kpios, Nstat};
pub use list::{CommandSetCombinations, CommandSets, ControllerList, NamespaceList};
pub use namespace::{
    DeallocatedRead, Dlfeat, Dpc, Dps, Flbas, Fpi, IdentifyNamespace, LbaFormat, Mc, Nmic, Nsattr,
    Nsfeat, ProtectionType, RelativePerformance, Rescap,
};
pub use nvm::{ExtendedLbaFormat, GuardFormat, NvmController, NvmNamespace, Pic};
pub use power::PowerState;

open_enum! {
    /// Controller or Namespace Structure: which data Identify returns (NVMe
    /// Base 2.1, section 5.1.13).
    pub enum Cns: u8 {
        Namespace = 0x00 => "Identify namespace",
        Controller = 0x01 => "Identify controller",
        ActiveNamespaces = 0x02 => "Active namespace list",
        NamespaceDescriptors = 0x03 => "Namespace identification descriptors",
        NvmSets = 0x04 => "NVM set list",
        CommandSetNamespace = 0x05 => "Command set specific namespace",
        CommandSetController = 0x06 => "Command set specific controller",
        CommandSetActiveNamespaces = 0x07 => "Command set active namespace list",
        IndependentNamespace = 0x08 => "Command set independent namespace",
        NamespaceFormat = 0x09 => "Namespace of a user data format",
        CommandSetNamespaceFormat = 0x0a => "Command set namespace of a user data format",
        AllocatedNamespaces = 0x10 => "Allocated namespace list",
        AllocatedNamespace = 0x11 => "Allocated namespace",
        NamespaceControllers = 0x12 => "Controllers attached to the namespace",
        Controllers = 0x13 => "Controller list",
        PrimaryController = 0x14 => "Primary controller capabilities",
        SecondaryControllers = 0x15 => "Secondary controller list",
        NamespaceGranularity = 0x16 => "Namespace granularity list",
        Uuids = 0x17 => "UUID list",
        Domains = 0x18 => "Domain list",
        EnduranceGroups = 0x19 => "Endurance group list",
        CommandSetAllocatedNamespaces = 0x1a => "Command set allocated namespace list",
        CommandSetAllocatedNamespace = 0x1b => "Command set allocated namespace",
        CommandSets = 0x1c => "I/O command set combinations",
        UnderlyingNamespaces = 0x1d => "Underlying namespace list",
        Ports = 0x1e => "Ports list",
        IndependentAllocatedNamespace = 0x1f => "Command set independent allocated namespace",
        ControllerStateFormats = 0x20 => "Supported controller state formats",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cns_is_total() {
        for raw in 0..=u8::MAX {
            assert_eq!(Cns::from(raw).code(), raw);
        }
        assert_eq!(Cns::from(0), Cns::Namespace);
        assert_eq!(Cns::from(0x1c), Cns::CommandSets);
        assert_eq!(Cns::from(0xff), Cns::Unknown(0xff));
    }
}
