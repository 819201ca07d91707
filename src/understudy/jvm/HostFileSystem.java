package understudy;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * The local disk as a host uses it, in the place of Hadoop's class for {@code file:}.
 *
 * <p>Hadoop's starts a process, {@code chmod}, for every file that it makes, and a second one for the file's checksum: tens
 * of milliseconds of every micro-batch. Here permissions are set by a system call, and there are no checksum files:
 * checkpoints have hashes of their own.
 *
 * <p>RocksDB's tables never change once they are written. So Spark's copies of them, from the checkpoint folder when a
 * state is opened and into it when a state is saved, are links, and cost the same for a table of any size.
 */
public class HostFileSystem extends LocalFileSystem {
  public HostFileSystem() {
    super(new Disk());
    setWriteChecksum(false);
    setVerifyChecksum(false);
  }

  @Override
  public void copyToLocalFile(boolean delSrc, Path src, Path dst) throws IOException {
    if (delSrc || !linked(src, dst)) super.copyToLocalFile(delSrc, src, dst);
  }

  @Override
  public void copyFromLocalFile(boolean delSrc, Path src, Path dst) throws IOException {
    if (delSrc || !linked(src, dst)) super.copyFromLocalFile(delSrc, src, dst);
  }

  /** False when a copy has to be made: of anything but a table, or to another disk. */
  private boolean linked(Path src, Path dst) throws IOException {
    if (!src.getName().endsWith(".sst")) return false;
    File from = pathToFile(src), to = pathToFile(dst);
    if (!from.isFile() || to.isDirectory()) return false;
    try {
      if (to.exists()) {
        // A copy onto a link of itself would leave both empty.
        if (Files.isSameFile(from.toPath(), to.toPath())) return true;
        Files.delete(to.toPath());
      } else if (to.getParentFile() != null) {
        Files.createDirectories(to.getParentFile().toPath());
      }
      Files.createLink(to.toPath(), from.toPath());
      return true;
    } catch (IOException | UnsupportedOperationException noLinks) {
      return false;
    }
  }

  /** The disk itself, without checksums. */
  private static class Disk extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission);
        return;
      }
      String text = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL + permission.getOtherAction().SYMBOL;
      try {
        Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
      } catch (UnsupportedOperationException notPosix) {
        super.setPermission(path, permission);
      }
    }
  }
}
