//! Parses the command line and the environment, and reports all invalid settings at once, each with its flag, its
//! variable and the values that are allowed. Clap alone stops at the first one and does not always name the variable.

use std::ffi::{OsStr, OsString};

use clap::builder::OsStringValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use crate::http_client::shown;

/// A setting with an invalid value.
pub(super) struct InvalidSetting {
    id: String,
    /// The environment variable of the setting.
    pub variable: String,
    /// What is wrong and what to write instead, with the names of the flag and the variable.
    pub message: String,
}

/// The result of parsing the command line.
pub(super) enum Parsed<T> {
    Command(T),
    /// The subcommand has at least one invalid setting.
    Invalid(Box<InvalidSettings>),
    /// Any other error, or a request for help or the version.
    Other(clap::Error),
}

/// The invalid settings of a subcommand, and what is needed to parse its valid settings.
pub(super) struct InvalidSettings {
    pub subcommand: String,
    pub settings: Vec<InvalidSetting>,
    /// The subcommand without the variables of its invalid settings, and the flags of its valid ones.
    valid: (Command, Vec<OsString>),
}

impl InvalidSettings {
    /// Parses the subcommand as if the invalid settings were not set, so that they have their defaults.
    pub(super) fn parse_valid_settings<T: FromArgMatches>(self) -> Result<T, clap::Error> {
        let (command, arguments) = self.valid;
        command.try_get_matches_from(arguments).and_then(|matches| T::from_arg_matches(&matches))
    }
}

/// Parses the arguments of a process, the first of which is the name of the program.
pub(super) fn read<T: FromArgMatches>(command: &Command, arguments: &[OsString]) -> Parsed<T> {
    let matches = command.clone().try_get_matches_from(arguments);
    let error = match matches.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(parsed) => return Parsed::Command(parsed),
        Err(error) => error,
    };
    match invalid_settings(command, arguments) {
        Some(invalid) if !invalid.settings.is_empty() => Parsed::Invalid(Box::new(invalid)),
        _ => Parsed::Other(error),
    }
}

/// Checks each setting on its own. `None` if the command line has an error other than an invalid value.
fn invalid_settings(command: &Command, arguments: &[OsString]) -> Option<InvalidSettings> {
    let accept_any_value = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.value_parser(OsStringValueParser::new()),
        false => arg,
    };
    let lenient = command.clone().mut_subcommands(|subcommand| subcommand.mut_args(accept_any_value));
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    let (name, given) = matches.subcommand()?;
    let subcommand = command.find_subcommand(name)?.clone().no_binary_name(true);
    let alone = subcommand.clone().mut_args(|arg| arg.env(None::<&str>).required(false));
    let settings: Vec<_> = subcommand.get_arguments().filter_map(|arg| invalid_setting(&alone, arg, given)).collect();
    let is_valid = |arg: &Arg| !settings.iter().any(|invalid| invalid.id == arg.get_id().as_str());
    let valid_flags = subcommand.get_arguments().filter(|arg| is_valid(arg)).filter_map(|arg| {
        let source = given.value_source(arg.get_id().as_str());
        if source == Some(ValueSource::CommandLine) { flag(arg, raw_value(arg, given)?) } else { None }
    });
    let valid = (
        subcommand.clone().mut_args(|arg| if is_valid(&arg) { arg } else { arg.env(None::<&str>) }),
        valid_flags.collect(),
    );
    Some(InvalidSettings { subcommand: name.to_owned(), settings, valid })
}

fn raw_value<'a>(arg: &Arg, given: &'a ArgMatches) -> Option<&'a OsStr> {
    given.try_get_raw(arg.get_id().as_str()).ok()??.next()
}

/// The argument as it is written on a command line.
fn flag(arg: &Arg, value: &OsStr) -> Option<OsString> {
    let mut flag = OsString::from(format!("--{}", arg.get_long()?));
    if arg.get_action().takes_values() {
        flag.push("=");
        flag.push(value);
    }
    Some(flag)
}

/// Parses one setting on its own; `None` if it is valid, or not a setting.
fn invalid_setting(alone: &Command, arg: &Arg, given: &ArgMatches) -> Option<InvalidSetting> {
    let id = arg.get_id().as_str();
    let variable = arg.get_env()?.to_string_lossy().into_owned();
    if given.value_source(id)? == ValueSource::DefaultValue {
        return None;
    }
    let value = raw_value(arg, given)?;
    let error = alone.clone().try_get_matches_from([flag(arg, value)?]).err()?;
    let setting = format!("--{} or {variable}", arg.get_long()?);
    let message = match error.kind() {
        ErrorKind::InvalidUtf8 => format!("{setting} is not valid UTF-8"),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if value.is_empty() => {
            format!("{setting} is empty; give it a value, or do not set it")
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let reason =
                std::error::Error::source(&error).map_or_else(|| error.kind().to_string(), ToString::to_string);
            let value = match arg.is_hide_env_values_set() {
                true => "invalid value".to_owned(),
                false => format!("invalid value {:?}", shown(&value.to_string_lossy())),
            };
            format!("{value} for {setting}: {reason}")
        }
        // Other kinds are about several arguments together, and this one was parsed on its own.
        _ => return None,
    };
    Some(InvalidSetting { id: id.to_owned(), variable, message })
}
