"""Check the names that a config uses for training, before anything is prepared."""

from t5x_lite.config import RunConfig
from t5x_lite.training.callbacks import find_callbacks
from t5x_lite.training.loggers import find_loggers
from t5x_lite.training.optimizer import check_optimizer


def check_training(config: RunConfig) -> None:
    """Refuse an optimizer, a schedule, a logger or a callback that does not exist."""
    check_optimizer(config.optimizer)
    find_loggers(config)
    find_callbacks(config)
