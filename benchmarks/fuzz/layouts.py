"""Price files that must be read correctly, or refused without advice that misreads them."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fuzz.cases import Outcome
from benchmarks.fuzz.vendor_files import FIELDS, VENDOR_FILES, Case, Generator, chance, drawn, one_of, written
from eigen_core.common.errors import InputError
from eigen_core.config.loading import load_config
from eigen_core.market.build import read_prices
from eigen_core.market.cleaning import CleanPrices

_LANGUAGES = (
    ("日期", "代码", "开盘", "最高", "最低", "收盘", "成交量"),
    ("날짜", "종목코드", "시가", "고가", "저가", "종가", "거래량"),
    ("日付", "銘柄", "始値", "高値", "安値", "終値", "出来高"),
    ("Datum", "Wertpapier", "Eröffnung", "Hoch", "Tief", "Schluss", "Stück"),
    ("Fecha", "Instrumento", "Apertura", "Máximo", "Mínimo", "Cierre", "Volumen"),
    ("Jour", "ISIN", "Ouverture", "Haut", "Bas", "Clôture", "Volume"),
    ("TradDt", "TckrSymb", "OpnPric", "HghPric", "LwPric", "ClsPric", "TtlTradgVol"),
    ("day", "permno", "askhi", "bidlo", "openprc", "prc", "vol"),
    ("datadate", "gvkey", "prcod", "prchd", "prcld", "prccd", "cshtrd"),
)
_ZONES = ("America/New_York", "Europe/London", "Europe/Berlin", "Asia/Tokyo", "Asia/Kolkata", "Australia/Sydney")
_DATES = (
    "%d.%m.%Y",
    "%m/%d/%Y",
    "%d/%m/%Y",
    "%d-%b-%Y",
    "%b %d, %Y",
    "%d %B %Y",
    "%Y%m%d%H%M",
    "%d.%m.%Y %H:%M:%S",
    "s",
)
_BESIDE = ("{}_sentiment", "{}_rsi14", "{}.1", "{} volume", "label", "signal", "rf", "CPI")
_STEPS = 3


def settings_of(message: str) -> list[str]:
    """Return the settings that a refusal says to add, as `key=value`."""
    flags = re.findall(r"--set ('(?:[^']|'\"'\"')*'|[^\s`]+)", message)
    return [shlex.split(flag)[0] for flag in flags if not flag.endswith("=...")]


def one_case(generator: Generator, folder: Path) -> Outcome:
    return case_of(str(generator.choice(list(LAYOUTS))), generator, folder)


def case_of(kind: str, generator: Generator, folder: Path) -> Outcome:
    """Write a file in a layout, read it, follow the advice of refusals, and compare."""
    case = LAYOUTS[kind](generator, folder)
    if case.named:
        treatment, wrong = follow(case, case.given)
        if wrong or treatment == "read":
            return Outcome(kind, "misread", wrong or "read, though it should be refused")
    treatment, wrong = follow(case, [*case.given, *case.named])
    if not wrong and case.right == "read" and treatment == "refused":
        wrong = "needlessly refused"
    if not wrong and case.right == "refused" and treatment == "read":
        wrong = "read, though it should be refused"
    if treatment != "refused":
        treatment = f"refused, then {treatment} with the settings of the user" if case.named else treatment
    return Outcome(kind, "misread" if wrong else treatment, wrong)


def follow(case: Case, given: list[str], steps: int = 0) -> tuple[str, str | None]:
    """Read a file, and again with the settings that a refusal prints; return what became of it, and what is wrong."""
    try:
        prices = read_prices(load_config(None, [f"market.data={case.path}", *given]))
    except InputError as error:
        printed = [setting for setting in settings_of(str(error)) if setting not in given]
        if not printed:
            return "refused", None
        if steps == _STEPS:
            return "refused", f"advice that leads nowhere: {error} with {given}"
        if "or `--set" not in str(error):
            ended, wrong = follow(case, [*given, *printed], steps + 1)
            return ("read with the settings printed" if ended.startswith("read") else ended), wrong
        # The user chooses: what is read then is not judged, but the advice must end.
        ends = [follow(case, [*given, setting], steps + 1)[1] or "" for setting in printed]
        return "refused", next((wrong for wrong in ends if wrong.startswith("advice")), None)
    wrong = difference(prices, case)
    return "read", wrong and f"{wrong} with {given}"


def difference(prices: CleanPrices, case: Case) -> str | None:
    """Return how prices differ from a case's bars, None if they are equal."""
    bars = case.bars
    if set(prices.symbols) != set(bars["symbol"]):
        return f"the symbols are {sorted(prices.symbols)}, not {sorted(set(bars['symbol']))}"
    for name in case.fields:
        expected = bars.pivot(index="date", columns="symbol", values=name)[list(prices.symbols)]
        days = expected.index.to_numpy().astype("datetime64[D]")
        if len(days) != len(prices.days) or (days != prices.days).any():
            return f"{len(prices.days)} days from {prices.days[0]}, not {len(days)} from {days[0]}"
        if not np.allclose(getattr(prices, name), expected, rtol=1e-9, atol=0.0, equal_nan=True):
            return f"other values of {name}"
    return None


def _long(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    frame = bars.sample(frac=1.0, random_state=int(generator.integers(1_000))) if chance(generator) else bars
    spelled = {
        "date": one_of(generator, ("Date", "date", "timestamp", "Trade Date", "datetime")),
        "symbol": one_of(generator, ("Ticker", "symbol", "SYMBOL", "symbol\u200b")),
        "close": one_of(generator, ("Close", "close", "<CLOSE>", "Close*")),
        "volume": one_of(generator, ("Vol.", "volume", "VOLUME")),
    }
    frame = frame.rename(columns=spelled)
    if chance(generator, 0.3):
        frame = frame.assign(Sector="tech", Change=0.5)
    if chance(generator, 0.3):
        frame = frame[generator.permutation(frame.columns)]
    if chance(generator, 0.2):
        frame = frame.astype({spelled["volume"]: object})
        where = frame.index[int(generator.integers(len(frame)))]
        frame.loc[where, spelled["volume"]] = "#DIV/0!"
        bars = bars.astype({"volume": float})
        bars.loc[where, "volume"] = np.nan
        frame.to_csv(folder / "p.csv", index=False)
        return Case(folder / "p.csv", bars, "read")
    return Case(written(generator, folder / "prices.csv", frame), bars, "read")


def _folder(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    for symbol, own in bars.groupby("symbol"):
        own.drop(columns="symbol").to_csv(folder / f"{symbol}.csv", index=False)
    (folder / "readme.txt").write_text("Prices.\n", encoding="utf-8")
    return Case(folder, bars, "read")


def _partitions(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    keys = one_of(generator, (["symbol"], ["year"], ["year", "symbol"]))
    bars.assign(year=bars["date"].dt.year).to_parquet(folder / "p", partition_cols=keys, index=False)
    return Case(folder / "p", bars, "read")


def _wide(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator, symbols=int(generator.integers(2, 6)))
    if chance(generator, 0.2):
        cusips = [f"{generator.integers(10**8, 10**9)}" for _ in range(bars["symbol"].nunique())]
        bars["symbol"] = bars["symbol"].map(dict(zip(bars["symbol"].unique(), cusips, strict=True)))
    frame = bars.pivot(index="date", columns="symbol", values="close").reset_index()
    path = written(generator, folder / "closes.csv", frame)
    return Case(path, bars, fields=("close",), named=["market.layout=wide"])


def _wide_beside(generator: Generator, folder: Path) -> Case:
    """Write columns beside closes that are no symbols; a user who names the layout alone names the symbols, too."""
    bars = drawn(generator, symbols=3)
    frame = bars.pivot(index="date", columns="symbol", values="close").reset_index()
    symbols = list(frame.columns[1:])
    days = len(frame)
    for name in generator.permutation(_BESIDE)[:2]:
        heading = str(name).format(symbols[0])
        walk = np.repeat(250.0 + np.cumsum(generator.standard_normal(days // 20 + 1)), 20)[:days]
        values = walk if name == "CPI" else generator.standard_normal(days) * 0.5
        frame[heading] = np.where(values > 0.3, 1, 0) if name == "label" else np.round(values, 4)
    path = folder / "closes.csv"
    frame.to_csv(path, index=False)
    return Case(path, bars, fields=("close",), named=["market.layout=wide", f"market.symbols={','.join(symbols)}"])


def _languages(generator: Generator, folder: Path) -> Case:
    headings = one_of(generator, _LANGUAGES)
    bars = drawn(generator, symbols=int(generator.integers(1, 4)))
    if headings[1] == "permno":
        numbers = {name: str(10_000 + number) for number, name in enumerate(bars["symbol"].unique())}
        bars["symbol"] = bars["symbol"].map(numbers)
    names = ("date", "symbol", "open", "high", "low", "close", "volume")
    if headings[1] == "permno":
        names = ("date", "symbol", "high", "low", "open", "close", "volume")
    frame = bars[list(names)].rename(columns=dict(zip(names, headings, strict=True)))
    if bars["symbol"].nunique() == 1:
        path = folder / f"{bars['symbol'][0]}.csv"
        frame.drop(columns=headings[1]).to_csv(path, index=False)
    else:
        path = written(generator, folder / "prices.csv", frame)
    fields = FIELDS if headings[1] != "permno" else ("close",)
    keys = [name for name in names if headings[names.index(name)] in frame.columns]
    named = [f"market.columns.{name}={headings[names.index(name)]}" for name in keys]
    if bars["symbol"].nunique() == 1:
        named = [setting for setting in named if ".symbol=" not in setting]
    return Case(path, bars, fields=fields, named=named)


def _one_column(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator, symbols=1)
    heading = str(generator.choice(["Kurs", "NAV", "price", "Settle", "Last", "value"]))
    path = folder / f"{bars['symbol'][0]}.csv"
    bars[["date", "close"]].rename(columns={"close": heading}).to_csv(path, index=False)
    return Case(path, bars, fields=("close",), named=[f"market.columns.close={heading}"])


def _unknown_key(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator, symbols=3)
    heading = str(generator.choice(["isin", "Wertpapier", "instrument", "asset", "venue_code", "x"]))
    path = written(generator, folder / "prices.csv", bars.rename(columns={"symbol": heading}))
    return Case(path, bars, named=[f"market.columns.symbol={heading}"])


def _dates(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    pattern = str(generator.choice(_DATES))
    texts = bars["date"].dt.as_unit("s").astype("int64") if pattern == "s" else bars["date"].dt.strftime(pattern)
    path = folder / "prices.csv"
    bars.assign(date=texts).to_csv(path, index=False)
    return Case(path, bars, named=[f"market.date_format={pattern}"])


def _parts(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    bars = bars[~bars["symbol"].isin(["^GSPC"])].reset_index(drop=True)
    if bars.empty:
        return _parts(generator, folder)
    pattern = str(generator.choice(["{}_{}.csv", "{}-{}.csv", "{}-1d-{}.csv", "{} {}.csv"]))
    for (symbol, month), own in bars.groupby(["symbol", bars["date"].dt.strftime("%Y-%m")]):
        own.drop(columns="symbol").to_csv(folder / pattern.format(symbol, month), index=False)
    return Case(folder, bars, named=[f"market.symbol_from={pattern.format('{symbol}', '{part}')}"])


def _utc_days(generator: Generator, folder: Path) -> Case:
    """Write days as the instants of an exchange's midnights, or closes, in UTC."""
    zone = str(generator.choice(_ZONES))
    bars = drawn(generator)
    hour = pd.Timedelta(hours=int(generator.choice([0, 16])))
    utc = (bars["date"] + hour).dt.tz_localize(zone).dt.tz_convert("UTC")
    path = folder / "prices.csv"
    bars.assign(date=utc).to_csv(path, index=False)
    at_midnight = bool((utc == utc.dt.normalize()).all())
    return Case(path, bars, named=[] if at_midnight else [f"market.time_zone={zone}"])


def _end_of_day(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    path = folder / "prices.csv"
    bars.assign(date=(bars["date"] + pd.Timedelta(days=1)).dt.tz_localize("UTC")).to_csv(path, index=False)
    return Case(path, bars)


def _hours(generator: Generator, folder: Path) -> Case:
    """Write hourly bars in UTC, whose last day is whole."""
    coins = chance(generator)
    zone = "UTC" if coins else str(generator.choice(_ZONES))
    days = drawn(generator, coins=coins)
    hours = range(24) if coins else range(9, 17)
    parts = []
    for hour in hours:
        share = (hour - hours[0]) / (len(hours) - 1)
        close = days["open"] + share * (days["close"] - days["open"])
        bar = {"open": close, "high": np.maximum(days["open"], days["close"]), "low": days["low"], "close": close}
        parts.append(days.assign(date=days["date"] + pd.Timedelta(hours=hour), **bar, volume=7))
    bars = pd.concat(parts, ignore_index=True)
    stamps = bars["date"].dt.tz_localize(zone, ambiguous=True, nonexistent="shift_forward")
    path = folder / "prices.csv"
    bars.assign(date=stamps.dt.tz_convert("UTC")).to_csv(path, index=False)
    expected = days.assign(high=np.maximum(days["open"], days["close"]), volume=7 * len(hours))
    named = [] if coins else ["market.bar=1d", f"market.time_zone={zone}"]
    return Case(path, expected, named=named)


def _doubtful(generator: Generator, folder: Path) -> Case:
    """Write numbers like 1.234 alone, between semicolons."""
    bars = drawn(generator, symbols=1)
    path = folder / "AAA.csv"
    cells = [f"{generator.integers(1, 9)}.{generator.integers(100, 999)}" for _ in range(len(bars))]
    lines = [f"{day:%Y-%m-%d};{cell}" for day, cell in zip(bars["date"], cells, strict=True)]
    path.write_text("\n".join(["Date;Close", *lines]) + "\n", encoding="utf-8")
    mark = str(generator.choice([".", ","]))
    bars["close"] = [float(cell) if mark == "." else float(cell.replace(".", "")) for cell in cells]
    bars["symbol"] = "AAA"
    given = [f"market.decimal={mark}", "market.suspicious=keep"] if chance(generator) else []
    return Case(path, bars, "read" if given else "refused", ("close",), given)


def _suspicious(generator: Generator, folder: Path) -> Case:
    """Spoil one row: it is refused, and left out where a user says so."""
    bars = drawn(generator, symbols=3)
    row = int(
        one_of(generator, bars.index[(bars["date"] > bars["date"].iloc[12]) & (bars["date"] < bars["date"].max())])
    )
    how = str(generator.choice(["spike", "zero", "negative", "twice"]))
    spoiled = bars.astype(dict.fromkeys(FIELDS, float))
    if how == "twice":
        spoiled = pd.concat([spoiled, spoiled.loc[[row]].assign(close=spoiled["close"][row] * 1.001)])
    else:
        factor = {"spike": float(generator.choice([100.0, 0.01])), "zero": 0.0, "negative": -1.0}[how]
        spoiled.loc[row, list(FIELDS[:4])] *= factor
    path = folder / "prices.csv"
    spoiled.to_csv(path, index=False)
    dropping = chance(generator)
    return Case(
        path, bars.drop(index=row), "read" if dropping else "refused", given=["market.suspicious=drop"] * dropping
    )


def _no_prices(generator: Generator, folder: Path) -> Case:
    """Write returns or profits through zero under the headings of closes, or fields below each other."""
    bars = drawn(generator, symbols=2)
    path = folder / "prices.csv"
    frame = bars.pivot(index="date", columns="symbol", values="close").reset_index()
    if chance(generator, 0.3):
        bars.melt(["date", "symbol"], var_name="field", value_name="price").to_csv(path, index=False)
        return Case(path, bars, "refused")
    frame[list(frame.columns[1:])] = generator.standard_normal((len(frame), 2)) * 0.01
    frame.to_csv(path, index=False)
    return Case(path, bars, "refused", given=["market.layout=wide"])


def _cases_of_letters(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator, symbols=2)
    first, second = bars["symbol"].unique()
    bars["symbol"] = bars["symbol"].map({first: "AAA", second: "aaa"})
    path = folder / "prices.csv"
    bars.to_csv(path, index=False)
    given = ["market.symbols=AAA,aaa"] if chance(generator) else []
    return Case(path, bars, "read" if given else "refused", given=given)


def _invisible(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    path = folder / "prices.csv"
    odd = np.where(np.arange(len(bars)) % 7 == 0, bars["symbol"] + "\u200b", bars["symbol"])
    bars.assign(symbol=odd).to_csv(path, index=False)
    return Case(path, bars, "read")


def _damaged(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator)
    how = str(generator.choice(["quote", "cut", "empty", "spreadsheet", "text"]))
    path = folder / ("prices.parquet" if how == "cut" else "prices.csv")
    bars.to_parquet(path) if how == "cut" else bars.to_csv(path, index=False)
    if how == "cut":
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * generator.uniform(0.1, 0.9))])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "spreadsheet":
        path = path.rename(folder / "prices.xlsx")
    else:
        lines = path.read_text().splitlines()
        first, second = sorted(generator.choice(np.arange(1, len(lines)), 2, replace=False))
        for row in (first, second) if how == "quote" else (first,):
            cells = lines[row].split(",")
            cells[5] = f'"{cells[5]}' if how == "quote" else "n.v."
            lines[row] = ",".join(cells)
        path.write_text("\n".join(lines) + "\n")
    return Case(path, bars, "refused")


def _marks_by_column(generator: Generator, folder: Path) -> Case:
    """Write some columns with a decimal point and some with a decimal comma, at two to four digits."""
    wide = chance(generator)
    bars = drawn(generator, symbols=int(generator.integers(2, 5)) if wide else 1)
    digits = int(generator.choice([2, 4]))
    bars = bars.round(dict.fromkeys(FIELDS[:4], digits))
    frame = (
        bars.pivot(index="date", columns="symbol", values="close").reset_index()
        if wide
        else bars.iloc[:, [0, *range(2, 7)]]
    )
    columns = list(frame.columns[1:])
    points = set(generator.permutation(columns)[: int(generator.integers(1, len(columns)))])
    for name in columns:
        texts = frame[name].map(f"{{:.{digits}f}}".format if chance(generator) else str, na_action="ignore")
        frame[name] = texts if name in points else texts.str.replace(".", ",")
    path = folder / f"{bars['symbol'][0]}.csv"
    frame.to_csv(path, index=False, sep=str(generator.choice([";", "\t", ","])))
    given = ["market.layout=wide"] if wide else []
    given += [f"market.decimal={generator.choice(['.', ','])}"] if chance(generator, 0.3) else []
    return Case(path, bars, "either", ("close",) if wide else FIELDS, given)


def _grouped(generator: Generator, folder: Path) -> Case:
    """Write numbers with a mark between thousands, of which some show the decimal mark."""
    bars = drawn(generator, symbols=1)
    frame = bars.drop(columns="symbol")
    for name in FIELDS[:4]:
        frame[name] = bars[name].map("{:,.4f}".format)
    frame["volume"] = bars["volume"].map("{:,}".format)
    decimal = str(generator.choice([".", ","]))
    if decimal == ",":
        frame[list(FIELDS)] = frame[list(FIELDS)].apply(lambda texts: texts.str.translate(str.maketrans(".,", ",.")))
    path = folder / f"{bars['symbol'][0]}.csv"
    frame.to_csv(path, index=False, sep=str(generator.choice([";", "\t", ","])))
    return Case(path, bars)


def _day_numbers(generator: Generator, folder: Path) -> Case:
    """Write dates as days since 1970, 1960 (SAS), 1899 (spreadsheets) or year 1; no setting reads them."""
    bars = drawn(generator)
    epoch = np.datetime64(one_of(generator, ("1970-01-01", "1960-01-01", "1899-12-30", "0000-12-31")), "D")
    numbers = (bars["date"].to_numpy().astype("datetime64[D]") - epoch).astype(np.int64)
    bars_written = bars.assign(date=numbers.astype(float) if chance(generator, 0.3) else numbers)
    return Case(written(generator, folder / "prices.csv", bars_written), bars, "refused")


def _number_symbols(generator: Generator, folder: Path) -> Case:
    bars = drawn(generator, symbols=int(generator.integers(2, 5)))
    scale, kind = one_of(generator, ((10.0, "float64"), (1.0, "float64"), (1.0, "int64"), (4.0, "float32")))
    numbers = generator.permutation(40)[: bars["symbol"].nunique()] / scale
    numbers = dict(zip(bars["symbol"].unique(), numbers, strict=True))
    bars["symbol"] = bars["symbol"].map(numbers).astype(kind)
    bars = bars.sort_values(["symbol", "date"], ignore_index=True)
    path = folder / ("p.parquet" if chance(generator, 0.7) else "p.csv")
    bars.to_parquet(path) if path.suffix == ".parquet" else bars.to_csv(path, index=False)
    whole = scale == 1.0 and (path.suffix == ".parquet" or kind == "int64")
    return Case(path, bars.assign(symbol=bars["symbol"].map("{:.0f}".format if whole else str)), "either")


def _adjusted_alone(generator: Generator, folder: Path) -> Case:
    """Leave out all prices but the adjusted close on some days."""
    bars = drawn(generator, symbols=int(generator.integers(1, 4)))
    alone = bars["date"].isin(generator.choice(bars["date"].unique(), int(generator.integers(1, 9)), replace=False))
    frame = bars.assign(adj_close=bars["close"])
    frame.loc[alone, ["close"] if chance(generator, 0.3) else [*FIELDS[:4]]] = np.nan
    if chance(generator):
        frame = frame.drop(columns=["open", "high", "low"])
    return Case(written(generator, folder / "prices.csv", frame), bars, "read", ("close",))


def _old_files(generator: Generator, folder: Path) -> Case:
    """Write files like AAPL_old.csv beside AAPL.csv."""
    bars = drawn(generator)
    for symbol, own in bars.groupby("symbol"):
        own.drop(columns="symbol").to_csv(folder / f"{symbol}.csv", index=False)
    ending = str(generator.choice(["_old", " (1)", "_2019", " copy", "_backup", "-2020"]))
    own.assign(close=own["close"] * 1.01).drop(columns="symbol").to_csv(folder / f"{symbol}{ending}.csv", index=False)
    return Case(folder, bars, "refused")


LAYOUTS: dict[str, Callable[[Generator, Path], Case]] = {
    **VENDOR_FILES,
    "long": _long,
    "a file a symbol": _folder,
    "partitions": _partitions,
    "wide": _wide,
    "wide, with columns beside closes": _wide_beside,
    "headings of other languages": _languages,
    "one column": _one_column,
    "symbols under an unknown heading": _unknown_key,
    "dates in other formats": _dates,
    "files of parts": _parts,
    "days in UTC": _utc_days,
    "stamps of the end of a day": _end_of_day,
    "hours in UTC": _hours,
    "points that may group thousands": _doubtful,
    "suspicious rows": _suspicious,
    "no prices": _no_prices,
    "symbols that differ in case": _cases_of_letters,
    "invisible characters": _invisible,
    "damaged": _damaged,
    "decimal marks that differ by column": _marks_by_column,
    "thousands with a mark": _grouped,
    "numbers of days": _day_numbers,
    "symbols that are numbers": _number_symbols,
    "adjusted closes alone": _adjusted_alone,
    "old files beside new ones": _old_files,
}
