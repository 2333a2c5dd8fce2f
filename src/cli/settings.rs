//! Reading the command line and the environment: every bad setting at once, each with its flag, its variable and
//! what is allowed. Clap itself stops at the first one and does not always name the variable.

use std::ffi::{OsStr, OsString};

use clap::builder::OsStringValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use crate::http_client::shown;

/// A setting whose value cannot be used.
pub struct BadSetting {
    id: String,
    /// The variable that holds it.
    pub variable: String,
    /// What is wrong with it and what to write instead.
    pub text: String,
}

/// What the arguments ask for.
pub enum Asked<T> {
    Command(T),
    /// Bad settings of this subcommand, at least one.
    Bad(Box<Bad>),
    /// Anything else that is wrong, and requests for help.
    Other(clap::Error),
}

/// Bad settings, and what is left without them.
pub struct Bad {
    pub subcommand: String,
    pub settings: Vec<BadSetting>,
    /// The subcommand with its good settings, which have to be read again.
    good: (Command, Vec<OsString>),
}

impl Bad {
    /// The subcommand with all bad settings left out.
    pub fn without<T: FromArgMatches>(self) -> Result<T, clap::Error> {
        let (command, arguments) = self.good;
        command.try_get_matches_from(arguments).and_then(|matches| T::from_arg_matches(&matches))
    }
}

/// Reads arguments, of which the first is the name of the program.
pub fn read<T: FromArgMatches>(command: &Command, arguments: &[OsString]) -> Asked<T> {
    let read = command.clone().try_get_matches_from(arguments);
    let error = match read.and_then(|matches| T::from_arg_matches(&matches)) {
        Ok(asked) => return Asked::Command(asked),
        Err(error) => error,
    };
    match bad_settings(command, arguments) {
        Some(bad) if !bad.settings.is_empty() => Asked::Bad(Box::new(bad)),
        _ => Asked::Other(error),
    }
}

/// Looks at each setting alone; `None` if something else than the values is wrong.
fn bad_settings(command: &Command, arguments: &[OsString]) -> Option<Bad> {
    let any_value = |arg: Arg| match arg.get_action().takes_values() {
        true => arg.value_parser(OsStringValueParser::new()),
        false => arg,
    };
    let lenient = command.clone().mut_subcommands(|subcommand| subcommand.mut_args(any_value));
    let matches = lenient.try_get_matches_from(arguments).ok()?;
    let (name, given) = matches.subcommand()?;
    let subcommand = command.find_subcommand(name)?.clone().no_binary_name(true);
    let alone = subcommand.clone().mut_args(|arg| arg.env(None::<&str>).required(false));
    let settings: Vec<_> = subcommand.get_arguments().filter_map(|arg| bad_setting(&alone, arg, given)).collect();
    let is_good = |arg: &Arg| !settings.iter().any(|bad| bad.id == arg.get_id().as_str());
    let given_good = subcommand.get_arguments().filter(|arg| is_good(arg)).filter_map(|arg| {
        let source = given.value_source(arg.get_id().as_str());
        if source == Some(ValueSource::CommandLine) { flag(arg, raw(arg, given)?) } else { None }
    });
    let good = (
        subcommand.clone().mut_args(|arg| if is_good(&arg) { arg } else { arg.env(None::<&str>) }),
        given_good.collect(),
    );
    Some(Bad { subcommand: name.to_owned(), settings, good })
}

fn raw<'a>(arg: &Arg, given: &'a ArgMatches) -> Option<&'a OsStr> {
    given.try_get_raw(arg.get_id().as_str()).ok()??.next()
}

/// The argument as it can stand on a command line.
fn flag(arg: &Arg, value: &OsStr) -> Option<OsString> {
    let mut flag = OsString::from(format!("--{}", arg.get_long()?));
    if arg.get_action().takes_values() {
        flag.push("=");
        flag.push(value);
    }
    Some(flag)
}

fn bad_setting(alone: &Command, arg: &Arg, given: &ArgMatches) -> Option<BadSetting> {
    let id = arg.get_id().as_str();
    let variable = arg.get_env()?.to_string_lossy().into_owned();
    if given.value_source(id)? == ValueSource::DefaultValue {
        return None;
    }
    let value = raw(arg, given)?;
    let error = alone.clone().try_get_matches_from([flag(arg, value)?]).err()?;
    let setting = format!("--{} or {variable}", arg.get_long()?);
    let text = match error.kind() {
        ErrorKind::InvalidUtf8 => format!("{setting} is not valid UTF-8"),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if value.is_empty() => {
            format!("{setting} is empty; give it a value, or leave it out")
        }
        ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
            let what = std::error::Error::source(&error).map_or_else(|| error.kind().to_string(), ToString::to_string);
            let value = match arg.is_hide_env_values_set() {
                true => "invalid value".to_owned(),
                false => format!("invalid value {:?}", shown(&value.to_string_lossy())),
            };
            format!("{value} for {setting}: {what}")
        }
        // About several arguments together, which this one is not.
        _ => return None,
    };
    Some(BadSetting { id: id.to_owned(), variable, text })
}
