"""The command ``scale0``."""
import sys


def main() -> None:
    from scale0_core.config.files import find_config, read_config
    from scale0_core.io.broker import Broker
    from scale0_core.io.log_output import LogOutput
    from pathlib import Path
    a = sys.argv
    cfg = read_config(Path(a[a.index("--config")+1]) if "--config" in a else None, ["broker.name="+a[a.index("--name")+1]] if "--name" in a else [])
    out = LogOutput(cfg.core.log)
    b = Broker(cfg)
    b.open()
    b.run_with_signals()
    out.close()
