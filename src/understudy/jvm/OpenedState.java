package understudy;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution;
import org.apache.spark.sql.execution.streaming.runtime.StreamingQueryWrapper;
import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec;
import org.apache.spark.sql.execution.streaming.state.ReadStateStore;
import org.apache.spark.sql.execution.streaming.state.RocksDB;
import org.apache.spark.sql.execution.streaming.state.RocksDBDataEncoder;
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStore$;
import org.apache.spark.sql.execution.streaming.state.StateStoreConf;
import org.apache.spark.sql.execution.streaming.state.StateStoreId;
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider;
import org.apache.spark.sql.execution.streaming.state.StateStoreProviderId;
import org.apache.spark.sql.types.StructType;
import scala.None$;
import scala.Option;
import scala.Tuple2;

/**
 * Opens the state of a query that is held at the door, so that its first batch finds it open.
 *
 * <p>Spark opens a state in the first task that needs it: 0.2 s of a small one's first batch. The stores of a stage are
 * described by a query of it that has run, a rehearsal; then the same stores are opened from the checkpoint folder of the
 * query at the door, under its own run id, which is how Spark will look for them.
 *
 * <p>All that is private to Spark and named here is named in this class. Where a name is missing, the constructor throws,
 * and Spark opens the state itself, later.
 */
public final class OpenedState {
  private static final String RUN_ID = "sql.streaming.runId";
  private static final Pattern IMAGE = Pattern.compile("(\\d+)\\.zip");

  /** What it takes to open one store, apart from where its files are. */
  private record Store(
      long operator, int partition, String name, StructType key, StructType value, KeyStateEncoderSpec encoder,
      boolean families, StateStoreConf conf, Configuration hadoop, boolean manyValues) {
    /** Where its files are in a checkpoint folder. */
    String folder() {
      String named = name.equals(StateStoreId.DEFAULT_STORE_NAME()) ? "" : name + "/";
      return "state/" + operator + "/" + partition + "/" + named;
    }
  }

  private final scala.collection.mutable.HashMap<StateStoreProviderId, StateStoreProvider> loaded;
  private final Method replay;
  private final List<Store> stores = new ArrayList<>();
  private final Map<StateStoreProviderId, Long> images = new ConcurrentHashMap<>();
  private final Set<UUID> letGo = ConcurrentHashMap.newKeySet();

  /** Describes the stores of a query that runs. */
  @SuppressWarnings("unchecked")
  public OpenedState(StreamingQueryWrapper rehearsed) throws ReflectiveOperationException {
    replay = RocksDB.class.getDeclaredMethod("replayChangelog", Tuple2[].class);
    replay.setAccessible(true);
    Field providers = StateStore$.class.getDeclaredField("loadedProviders");
    providers.setAccessible(true);
    loaded = (scala.collection.mutable.HashMap<StateStoreProviderId, StateStoreProvider>) providers.get(null);
    synchronized (loaded) { // as Spark does
      for (var each = loaded.iterator(); each.hasNext(); ) {
        var pair = each.next();
        var id = pair._1();
        if (id.queryRunId().equals(rehearsed.runId()) && pair._2() instanceof RocksDBStateStoreProvider provider) {
          stores.add(described(id.storeId(), provider));
        }
      }
    }
  }

  private static Store described(StateStoreId id, RocksDBStateStoreProvider provider) throws ReflectiveOperationException {
    if (provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$stateSchemaProvider().isDefined()) {
      throw new UnsupportedOperationException("this state's schema may change");
    }
    var encoders = provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$keyValueEncoderMap()
        .get(StateStore$.MODULE$.DEFAULT_COL_FAMILY_NAME());
    var data = (RocksDBDataEncoder) field(encoders._1(), "dataEncoder");
    return new Store(
        id.operatorId(), id.partitionId(), id.storeName(),
        provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$keySchema(),
        provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$valueSchema(),
        (KeyStateEncoderSpec) field(data, "keyStateEncoderSpec"),
        provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$useColumnFamilies(),
        provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$storeConf(),
        provider.org$apache$spark$sql$execution$streaming$state$RocksDBStateStoreProvider$$hadoopConf(),
        encoders._2().supportsMultipleValuesPerKey());
  }

  private static Object field(Object of, String name) throws ReflectiveOperationException {
    for (Class<?> kind = of.getClass(); kind != null; kind = kind.getSuperclass()) {
      try {
        Field found = kind.getDeclaredField(name);
        found.setAccessible(true);
        return found.get(of);
      } catch (NoSuchFieldException elsewhere) {
        continue;
      }
    }
    throw new NoSuchFieldException(of.getClass() + "." + name);
  }

  /** How many stores there are. */
  public int size() {
    return stores.size();
  }

  /**
   * Opens all stores of the query at the door at {@code version}, or takes those that are open there. {@code files} are
   * the names of the version's files, a line each.
   */
  public void open(StreamingQueryWrapper armed, long version, String files) {
    // All are waited for, also when one fails: nothing may be opened once this has returned.
    List<RuntimeException> failed = stores.parallelStream()
        .map(store -> tried(store, armed, version, files)).filter(Objects::nonNull).toList();
    if (!failed.isEmpty()) throw failed.get(0);
  }

  private RuntimeException tried(Store store, StreamingQueryWrapper armed, long version, String files) {
    try {
      synchronized (store) { // a takeover may begin in the middle of following
        if (!letGo.contains(armed.runId())) open(store, armed, version, newestImage(store, files));
      }
      return null;
    } catch (Exception | LinkageError failure) {
      return new IllegalStateException(failure);
    }
  }

  private void open(Store store, StreamingQueryWrapper armed, long version, long image) {
    StateStoreProviderId id = id(store, armed);
    Configuration hadoop = new Configuration(store.hadoop);
    hadoop.set(RUN_ID, armed.runId().toString());
    RocksDB db = opened(id);
    long from = db == null ? -1 : db.loadedVersion();
    if (from < 0 || from > version || image != images.getOrDefault(id, -1L)) {
      // A newer image comes with other tables, and those of the one before are gone from the folder.
      if (db != null) db.loadedVersion_$eq(-1);
      images.remove(id);
      get(store, id, hadoop, version).release();
      images.put(id, image);
    } else if (from < version) {
      goOn(store, id, hadoop, db, version);
    }
    // Else the first batch might write an image, which takes longer than the rest of it.
    db = opened(id);
    if (db != null) db.org$apache$spark$sql$execution$streaming$state$RocksDB$$lastSnapshotVersion_$eq(version);
  }

  /** Takes a store that is open to a newer version by the changes since. */
  private void goOn(Store store, StateStoreProviderId id, Configuration hadoop, RocksDB db, long version) {
    long from = db.loadedVersion();
    Tuple2<?, ?>[] changes = new Tuple2<?, ?>[(int) (version - from)];
    for (int i = 0; i < changes.length; i++) changes[i] = new Tuple2<>(from + 1 + i, None$.MODULE$);
    ReadStateStore held = get(store, id, hadoop, from);
    try {
      replay.invoke(db, (Object) changes);
      db.loadedVersion_$eq(version);
    } catch (Exception halfDone) {
      db.loadedVersion_$eq(-1);
      throw new IllegalStateException(halfDone.getCause() == null ? halfDone : halfDone.getCause());
    } finally {
      held.release();
    }
  }

  /**
   * The query is let go: its tasks open what is not open yet, or wait for what is being opened. From now on nothing else is
   * touched of what is theirs.
   */
  public void letGo(StreamingQueryWrapper armed) {
    letGo.add(armed.runId());
  }

  /** Closes what was opened for a query, unless it was let go. */
  public void close(StreamingQueryWrapper armed) {
    for (Store store : stores) {
      synchronized (store) {
        if (!letGo.contains(armed.runId())) close(id(store, armed));
      }
    }
  }

  private void close(StateStoreProviderId id) {
    images.remove(id);
    Option<StateStoreProvider> removed;
    synchronized (loaded) {
      removed = loaded.remove(id);
    }
    if (removed.isDefined()) removed.get().close();
  }

  /** The open store, or null. */
  private RocksDB opened(StateStoreProviderId id) {
    synchronized (loaded) {
      Option<StateStoreProvider> found = loaded.get(id);
      return found.isDefined() && found.get() instanceof RocksDBStateStoreProvider provider ? provider.rocksDB() : null;
    }
  }

  /** The whole image of a store that a version has, 0 when it has only changes. */
  private static long newestImage(Store store, String files) {
    long newest = 0;
    for (String name : files.split("\n")) {
      if (!name.startsWith(store.folder())) continue;
      Matcher image = IMAGE.matcher(name.substring(store.folder().length()));
      if (image.matches()) newest = Math.max(newest, Long.parseLong(image.group(1)));
    }
    return newest;
  }

  private static StateStoreProviderId id(Store store, StreamingQueryWrapper armed) {
    StreamExecution query = armed.streamingQuery();
    String root = new Path(query.resolvedCheckpointRoot(), "state").toString();
    return new StateStoreProviderId(new StateStoreId(root, store.operator, store.partition, store.name), armed.runId());
  }

  private static ReadStateStore get(Store store, StateStoreProviderId id, Configuration hadoop, long version) {
    return StateStore$.MODULE$.getReadOnly(
        id, store.key, store.value, store.encoder, version, Option.empty(), Option.empty(), store.families, store.conf,
        hadoop, store.manyValues);
  }
}
