"""The commands. To add one, write a file with a docstring (its help), an EXAMPLE,
`add_options(command)` and `run(args)`, and add its name to COMMANDS.
"""

from t5x_lite.commands import (
    compare,
    completion,
    doctor,
    embed,
    evaluate,
    export,
    fill,
    finetune,
    generate,
    import_,
    inspect,
    list_,
    plan,
    prepare,
    report,
    rerun,
    score,
    train,
    verify,
)

_MODULES = (
    prepare,
    plan,
    train,
    finetune,
    evaluate,
    generate,
    fill,
    score,
    embed,
    compare,
    report,
    rerun,
    inspect,
    import_,
    export,
    verify,
    list_,
    doctor,
    completion,
)
COMMANDS = {module.__name__.rpartition(".")[2].rstrip("_"): module for module in _MODULES}
