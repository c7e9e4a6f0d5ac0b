"""The most that a phase holds at once while it computes, beside what stays from phase to phase (bytes).

Each function follows the code that it is about, moment after moment, and takes the largest; `tests` compare them with
a count of all tensors that live while that code runs. A "moment" is a sum of blocks that live at the same time.
"""

from dataclasses import dataclass

from eigen_core.networks import ACTION_VALUES
from eigen_core.planning.scale import DOUBLE, HALF, SINGLE, Scale, padded
from eigen_core.trading import PORTFOLIO_VALUES


@dataclass(frozen=True)
class Encoding:
    """What encoding takes (bytes).

    Attributes:
        peak: the most at once, the result included.
        embeddings: the result, `[agents, days, columns, embedding]`.
    """

    peak: int
    embeddings: int


def _product(rows: int, outputs: int) -> tuple[int, int]:
    """Bytes of a product before its bias is added, and after."""
    return SINGLE * rows * padded(outputs), SINGLE * rows * outputs


def encode_filters(scale: Scale, agents: int, days: int, *, picked: bool) -> Encoding:
    """Encoding by `filter_bank` without a gradient; `picked` days are copied from the bank first."""
    network, rows = scale.config.network, agents * days * scale.panel.columns
    read = SINGLE * rows * scale.filters if picked else 0
    product, hidden = _product(rows, network.channels)
    result, embeddings = _product(rows, network.embedding)
    return Encoding(read + max(product + hidden, 2 * hidden, hidden + result + embeddings), embeddings)


@dataclass(frozen=True)
class _Chunk:
    """Blocks of some columns in `tcn` (bytes): what is read, and the hidden layers from the input on."""

    copied: int
    products: tuple[int, ...]
    hidden: tuple[int, ...]
    result: int
    embeddings: int

    @property
    def peak(self) -> int:
        """The most at once without a gradient."""
        moments = [self.copied + self.products[0] + self.hidden[0], 2 * self.hidden[0]]
        for before, product, after in zip(self.hidden[:-1], self.products[1:], self.hidden[1:], strict=True):
            moments.append(before + 2 * after + product + after)
        return max(*moments, self.hidden[-1] + self.result + self.embeddings)

    @property
    def remembered(self) -> int:
        """What the backward pass needs: what is read, each layer's input pairs and result, the last layer."""
        return self.copied + self.hidden[0] + 3 * sum(self.hidden[1:]) + self.hidden[-1]


def _chunk(scale: Scale, agents: int, days: int, columns: int) -> _Chunk:
    network = scale.config.network
    history = days + scale.config.market.window - 1
    lengths = [history]
    for dilation in scale.dilations:
        lengths.append(lengths[-1] - dilation)
    blocks = [_product(agents * length * columns, network.channels) for length in lengths]
    result, embeddings = _product(agents * days * columns, network.embedding)
    return _Chunk(
        # All columns lie side by side as they are; some of them are copied, for each agent.
        copied=0 if columns == scale.panel.columns else SINGLE * agents * history * columns * scale.panel.features,
        products=tuple(product for product, _ in blocks),
        hidden=tuple(hidden for _, hidden in blocks),
        result=result,
        embeddings=embeddings,
    )


def _chunk_columns(scale: Scale) -> list[int]:
    columns = scale.panel.columns
    step = scale.config.network.column_chunk or columns
    return [min(step, columns - start) for start in range(0, columns, step)]


def encode_block(scale: Scale, agents: int, days: int) -> Encoding:
    """Encoding consecutive days without a gradient."""
    if scale.config.network.encoder == "filter_bank":
        return encode_filters(scale, agents, days, picked=False)
    moments, done = [], 0
    for columns in _chunk_columns(scale):
        chunk = _chunk(scale, agents, days, columns)
        moments.append(done + chunk.peak)
        done += chunk.embeddings
    return Encoding(max(*moments, 2 * done), done)


def _pool(scale: Scale, agents: int, days: int) -> int:
    """The most at once while the columns are pooled, beside the embeddings."""
    rows, queries = agents * days * scale.panel.columns, scale.config.network.queries
    scores, values = _product(rows, queries)
    return scores + 3 * values


def _context_bytes(scale: Scale, agents: int, days: int) -> int:
    network = scale.config.network
    return SINGLE * agents * days * network.embedding * network.queries


@dataclass(frozen=True)
class _Actor:
    """Blocks of the actor (bytes): the tradable columns' embeddings copied, a product, a hidden layer."""

    copied: int
    product: int
    hidden: int

    @property
    def prepare(self) -> int:
        """The most at once while the actor's part that depends on the market is computed, the result included."""
        return max(self.copied + self.product + self.hidden, 2 * self.hidden)


def _actor(scale: Scale, agents: int, days: int) -> _Actor:
    network, rows = scale.config.network, agents * days * scale.panel.assets
    product, hidden = _product(rows, network.head_width)
    copied = 0 if scale.panel.assets == scale.panel.columns else SINGLE * rows * network.embedding
    return _Actor(copied, product, hidden)


def roll_out(scale: Scale, agents: int, slices: int, *, shared: bool, recorded: bool) -> int:
    """The most at once while `agents` play `slices` episodes each.

    Args:
        scale: the run.
        agents, slices: how many.
        shared: all agents play the same episodes; else they are prepared one after the other.
        recorded: transitions are kept.
    """
    days, assets = scale.episode_days, scale.panel.assets
    whole = _actor(scale, agents, days).hidden * slices
    if shared:
        preparing = _prepare(scale, agents, slices)
    else:
        before = whole - whole // agents
        preparing = max(before + _prepare(scale, 1, slices), 2 * whole)
    cells = agents * slices * days * assets
    actions = SINGLE * cells * ACTION_VALUES
    if not scale.observed:
        act = max(3 * whole, 2 * whole + _product(cells, scale.config.network.head_width)[0])
        return max(preparing, whole + act, whole + 4 * actions)
    kept = agents * slices * days * scale.episode_row_bytes if recorded else 0
    return max(preparing, whole + kept + _step(scale, agents * slices))


def _prepare(scale: Scale, agents: int, slices: int) -> int:
    """The most at once while the market is encoded and the actor prepared for all days of the episodes."""
    days = scale.episode_days
    encoding, actor = encode_block(scale, agents, days), _actor(scale, agents, days)
    embedding = encoding.embeddings + _context_bytes(scale, agents, days)
    # An episode's embedding lives until the next one's is computed.
    former = embedding if slices > 1 else 0
    before = (slices - 1) * actor.hidden
    return max(
        before + former + encoding.peak,
        before + former + encoding.embeddings + _pool(scale, agents, days),
        before + embedding + actor.prepare,
        2 * slices * actor.hidden + embedding,
    )


_STATE_VALUES = 6
_ORDER_BYTES = 7 * DOUBLE + 3
_TEMPORARY_VALUES = 6


def _step(scale: Scale, episodes: int) -> int:
    """The most at once while one day is acted on and traded, with the positions and the orders so far."""
    cells = episodes * scale.panel.assets
    product, hidden = _product(cells, scale.config.network.head_width)
    acting = max(2 * hidden + product + hidden, 4 * hidden)
    trading = _TEMPORARY_VALUES * DOUBLE * cells
    positions = _STATE_VALUES * DOUBLE * (cells + episodes)
    orders = 2 * _ORDER_BYTES * episodes * scale.config.trading.trading_days
    return positions + HALF * cells * PORTFOLIO_VALUES + orders + max(acting, trading)


def evaluate(scale: Scale) -> int:
    """The most at once in the evaluate phase."""
    config = scale.config
    evaluation, size = config.evaluation, config.population.size
    shared = evaluation.shared_slices
    recorded = scale.rows_per_generation * scale.episode_row_bytes
    noise = SINGLE * ACTION_VALUES * scale.panel.assets * scale.group * evaluation.slices * scale.episode_days
    before = recorded * (size - scale.group) // size
    return max(
        before + 4 * noise,
        before + noise + roll_out(scale, scale.group, evaluation.slices, shared=shared, recorded=True),
        recorded + noise + roll_out(scale, scale.group, evaluation.validation_slices, shared=True, recorded=False),
        2 * recorded + noise,
    )


def hold_out(scale: Scale) -> int:
    """The most at once while the holdout days are played: the weights that the run began with, group by group."""
    if scale.config.market.holdout_days == 0:
        return 0
    slices = scale.config.evaluation.validation_slices
    return scale.matrix_bytes + roll_out(scale, scale.group, slices, shared=True, recorded=False)


@dataclass(frozen=True)
class _Batch:
    """Blocks of one batch of `batch_size` days for each agent of a group (bytes).

    Attributes:
        transitions: what is picked from the replay.
        market: the market embedding: embeddings, context, which columns have a price.
        embeddings: of it, the embeddings.
        pooling: what pooling the columns remembers for the backward pass.
        pool: the most at once while they are pooled.
        inputs: the critic's inputs, one row an asset.
        actor: blocks of the actor.
    """

    transitions: int
    market: int
    embeddings: int
    pooling: int
    pool: int
    inputs: int
    actor: _Actor

    @classmethod
    def of(cls, scale: Scale) -> "_Batch":
        network, batch = scale.config.network, scale.config.learner.batch_size
        days = scale.group * batch
        rows, cells = days * scale.panel.columns, days * scale.panel.assets
        embeddings = SINGLE * rows * network.embedding
        return cls(
            transitions=SINGLE * cells * (2 * scale.observed + ACTION_VALUES) + 5 * DOUBLE * days,
            market=embeddings + _context_bytes(scale, scale.group, batch) + rows,
            embeddings=embeddings,
            pooling=2 * SINGLE * rows * network.queries,
            pool=_pool(scale, scale.group, batch),
            inputs=SINGLE * cells * (network.embedding + ACTION_VALUES + scale.observed),
            actor=_actor(scale, scale.group, batch),
        )

    @property
    def act(self) -> int:
        """The most at once while the actor acts, what it was prepared for included."""
        return 4 * self.actor.hidden + self.actor.product

    @property
    def value(self) -> int:
        """The most at once while a critic computes without a gradient."""
        return self.inputs + max(3 * self.actor.hidden, 2 * self.actor.hidden + self.actor.product)


@dataclass(frozen=True)
class _BatchEncoding:
    """What encoding a batch of days takes (bytes).

    Attributes:
        peak: the most at once without a gradient, the embeddings included.
        forward: the most at once with one.
        remembered: what stays for the backward pass.
        backward: the most at once in the backward pass beside the embeddings, with their gradient and `remembered`.
    """

    peak: int
    forward: int
    remembered: int
    backward: int


def _encode_by_filters(scale: Scale) -> _BatchEncoding:
    batch = scale.config.learner.batch_size
    rows = scale.group * batch * scale.panel.columns
    read, hidden = SINGLE * rows * scale.filters, SINGLE * rows * scale.config.network.channels
    encoding = encode_filters(scale, scale.group, batch, picked=True)
    return _BatchEncoding(
        peak=encoding.peak,
        forward=encoding.peak,
        remembered=read + hidden,
        backward=read + 2 * hidden + max(hidden, encoding.embeddings),
    )


def _encode_by_convolutions(scale: Scale) -> _BatchEncoding:
    """A block is encoded as a whole, chunk of columns after chunk, and each agent's days picked from it."""
    widths, batch = _chunk_columns(scale), scale.config.learner.batch_size
    block_days, history = scale.block_days, scale.block_days + scale.config.market.window - 1
    # A block that begins before the window's length is filled up with zeros in front.
    filled = SINGLE * history * scale.panel.columns * scale.panel.features
    plain, graded, picked, blocks, former = [], [], 0, 0, 0
    for columns in widths:
        chunk = _chunk(scale, scale.group, block_days, columns)
        plain.append(picked + former + chunk.peak)
        graded.append(picked + blocks + chunk.peak)
        picked += SINGLE * scale.group * batch * columns * scale.config.network.embedding
        former = chunk.embeddings
        # What days are picked from is remembered by the picking.
        blocks += chunk.embeddings
    largest = _chunk(scale, scale.group, block_days, max(widths))
    remembered = filled + blocks
    if not scale.config.network.column_chunk:
        # Without chunks nothing is computed again, so all of it is remembered.
        remembered += largest.remembered
        graded.append(largest.remembered + largest.result + largest.embeddings)
    last = largest.hidden[-1]
    again = largest.remembered + largest.embeddings + max(last, largest.hidden[-2])
    backward = blocks - largest.embeddings + max(again, largest.remembered + 2 * last)
    return _BatchEncoding(
        peak=filled + max(*plain, 2 * picked + former),
        forward=filled + max(*graded, 2 * picked + blocks),
        remembered=remembered,
        backward=filled + picked + backward,
    )


def _learn_from_batch(scale: Scale, batch: _Batch) -> int:
    """The most at once in a critic step and in an actor step, beside transitions and embeddings of all batches."""
    network = scale.config.network
    encoding = (_encode_by_filters if network.encoder == "filter_bank" else _encode_by_convolutions)(scale)
    actor, critics = batch.actor, 2 if scale.config.learner.twin_critics else 1
    valued = 2 * critics * actor.hidden
    encoded = batch.market + batch.pooling + encoding.remembered
    no_gradient = max(
        encoding.peak,
        batch.embeddings + batch.pool,
        batch.market + actor.prepare,
        batch.market + batch.act,
        batch.market + batch.value,
    )
    critic = max(
        encoding.forward,
        encoding.remembered + batch.embeddings + batch.pool,
        encoded + valued - 2 * actor.hidden + batch.value,
        encoded + valued + batch.inputs + 2 * actor.hidden,
        encoded + 2 * batch.inputs + 2 * actor.hidden,
        encoded + 2 * batch.embeddings,
        batch.market + encoding.backward,
    )
    acting = actor.copied + 2 * actor.hidden
    actors = max(
        actor.copied + batch.act,
        acting + valued - 2 * actor.hidden + batch.value,
        acting + valued + 2 * actor.hidden,
    )
    # The embedding of the batch under way is among those of all batches.
    return max(no_gradient, critic - batch.market, actors)


def train(scale: Scale) -> int:
    """The most at once in the train phase, without the second population that it fills; 0 if it never learns."""
    config = scale.config
    if not scale.learns:
        return 0
    learner, batch = config.learner, _Batch.of(scale)
    slots = DOUBLE * config.population.size * learner.gradient_steps * learner.accumulation_steps * learner.batch_size
    rows = SINGLE * scale.group * max(scale.critic, scale.actor)
    held = slots + learner.accumulation_steps * (batch.transitions + batch.market)
    # Slots in the order of their days, then the days in this order and where each begins.
    ordered = DOUBLE * scale.rows_stored
    drawing = ordered + max((SINGLE + 1) * scale.rows_stored, 2 * slots)
    size = config.population.size
    group = scale.population_bytes * scale.group // size if scale.group < size else 0
    return max(group + held + max(2 * rows + _learn_from_batch(scale, batch), 7 * rows), drawing)


def evolve(scale: Scale) -> int:
    """The most at once in the evolve phase: the population that is bred, and a column of the elites' state."""
    if not scale.config.evolution.enabled:
        return 0
    return scale.population_bytes + int(scale.matrix_bytes * scale.config.evolution.elite_share)
